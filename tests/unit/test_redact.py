from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sealtape.cassette import codec, redact
from sealtape.cassette.key import http_question
from sealtape.cassette.model import Answer, Cassette, Failure, Said, Take
from sealtape.config import QuestionRules, Redaction
from sealtape.errors import SecretError
from sealtape.placeholder import placeholder_for

QUESTION = http_question("POST", "https://api.example.com/v1", [], b'{"a":1}', rules=QuestionRules())
JSON = ("content-type", "application/json")
KEY = "acme-real/key+with=odd.chars"

# Put together here, so that no scanner of this file takes them for real ones.
SHAPES = {
    "anthropic": "sk-ant-" + "api03-" + "Ab3dEf6hIj9lMn2pQr5tUv8x" * 2,
    "openai": "sk-" + "Ab3dEf6hIj9lMn2pQr5t" + "T3BlbkFJ" + "Ab3dEf6hIj9lMn2pQr5t",
    "openai project": "sk-" + "proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x",
    "google": "AIza" + "SyAb3dEf6hIj9lMn2pQr5tUv8xYz1Bc4dEf",
    "google oauth": "ya29." + "Ab3dEf6hIj9lMn2pQr5tUv8x",
    "github": "ghp_" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1Bc4dEf6hI",
    "aws": "AKIA" + "IOSFODNN7EXAMPLQ",
    "slack": "xoxb-" + "123456789012-123456789012-" + "Ab3dEf6hIj9lMn2pQr5tUv8x",
    "jwt": ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=")
        for part in (b'{"alg":"HS256","typ":"JWT"}', b'{"sub":"1234567890"}', b"\x01\x9a" * 16)
    ),
    "groq": "gsk_" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1Bc4dEf6hI",
    "hugging face": "hf_" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1Bc4dEf6",
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
}


def written(take: Take, *, secrets: dict[str, str] | None = None, rules: tuple[Redaction, ...] = ()) -> bytes:
    """What a write of this take puts on disk, blobs included. Raises `SecretError`."""
    cassette = Cassette(key=QUESTION.key, question=QUESTION, takes=(take,), recorded_at="t")
    clean = redact.redacted(cassette, secrets=secrets or {}, rules=rules)
    data, blobs = codec.dumps(clean)
    for part in (data, *blobs.values()):
        redact.refuse_secrets(part, secrets=secrets or {}, name="the recording")
    return b"\n".join([data, *blobs.values()])


def answer(body: bytes = b"", *headers: tuple[str, str]) -> Answer:
    return Answer(status=200, headers=headers, body=body, chunks=(len(body),))


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda secret: f"key={secret};",
    "url": lambda secret: f"key={quote(secret, safe='')}&x",
    "url, lower case": lambda secret: re.sub("%..", lambda m: m[0].lower(), f"{quote(secret, safe='')}&x"),
    "url, form": lambda secret: f"key={quote_plus(secret)}&x",
    "json": lambda secret: json.dumps({"key": secret}),
    "json, escaped slashes": lambda secret: json.dumps({"key": secret}).replace("/", "\\/"),
    "basic": lambda secret: "Basic " + base64.b64encode(f"user:{secret}".encode()).decode(),
    "base64 + 0": lambda secret: base64.b64encode(f"abc{secret}xy".encode()).decode(),
    "base64 + 1": lambda secret: base64.b64encode(f"abcd{secret}xyz".encode()).decode(),
    "base64 + 2": lambda secret: base64.urlsafe_b64encode(f"abcde{secret}x".encode()).decode(),
}


def readable(data: bytes) -> str:
    """The written text, with everything in it that decodes, decoded: as somebody would look for a key."""
    text = data.decode()
    found = [text, re.sub(r"\\+/", "/", text), unquote(text), unquote_plus(text)]
    for run in re.findall(r"[A-Za-z0-9+/_-]{8,}", text):
        digits = run.replace("-", "+").replace("_", "/")
        for lead in range(4):
            part = digits[lead:]
            found.append(base64.b64decode(part[: len(part) // 4 * 4]).decode("latin-1"))
    return "\n".join(found)


secrets_of_any_kind = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=40).filter(
    # Punctuation alone could be part of any JSON.
    lambda text: sum(char.isalnum() for char in text) >= 8
)


@pytest.mark.parametrize("form", FORMS)
def test_whoever_looks_finds_a_secret_that_is_not_taken_out(form: str) -> None:
    assert KEY in readable(written(answer(FORMS[form](KEY).encode(), JSON)))


@pytest.mark.parametrize("form", FORMS)
@given(secret=secrets_of_any_kind, where=st.sampled_from(["body", "header", "sse", "message", "said"]))
@example(secret=KEY, where="body")
@example(secret='quo"te\\back/slash', where="body")
def test_a_secret_in_any_form_and_place_never_reaches_the_disk(form: str, secret: str, where: str) -> None:
    text = FORMS[form](secret)
    takes: dict[str, Take] = {
        "body": answer(text.encode(), JSON),
        "header": answer(b"{}", ("x-echo", text), JSON),
        "sse": answer(f"data: {text}\n\n".encode(), ("content-type", "text/event-stream")),
        "message": Failure(kind="read_error", message=text, after=answer(text.encode())),
        "said": Said(text=text),
    }
    try:
        data = written(takes[where], secrets={"ACME_KEY": secret})
    except SecretError as error:
        data = str(error).encode()
    assert secret not in readable(data)
    assert json.dumps(secret)[1:-1] not in data.decode()
    assert quote(secret, safe="") not in data.decode()


def test_a_secret_is_replaced_and_the_rest_of_the_answer_stays() -> None:
    take = answer(f'{{"echo": "{KEY}", "text": "Hello"}}'.encode(), JSON, ("Content-Length", "99"))
    data = written(take, secrets={"ACME_KEY": KEY})
    (read,) = codec.loads(data, name="x").takes
    assert isinstance(read, Answer)
    assert read.body == b'{"echo": "REDACTED", "text": "Hello"}'
    assert read.header("content-length") == str(len(read.body))
    assert read.pieces() == [read.body]


def test_a_secret_that_begins_with_another_is_replaced_whole() -> None:
    data = written(answer(KEY.encode() + b"-and-its-tail"), secrets={"A": KEY, "B": f"{KEY}-and-its-tail"})
    assert b"tail" not in data


def test_a_secret_across_chunks_is_found() -> None:
    body = f"data: {KEY}\n\n".encode()
    take = Answer(status=200, body=body, chunks=(10, 10, len(body) - 20))
    assert KEY.encode() not in written(take, secrets={"ACME_KEY": KEY})


def test_a_short_secret_is_refused_and_never_replaced() -> None:
    with pytest.raises(SecretError, match=r"the recording would carry a secret: PIN at line \d+"):
        written(answer(b"the code is 4711"), secrets={"PIN": "4711"})
    assert b"the code is 4712" in written(answer(b"the code is 4712"), secrets={"PIN": "4711"})


def test_a_secret_in_the_question_is_refused_by_its_line() -> None:
    question = http_question("POST", "https://a/", [JSON], json.dumps({"q": KEY}).encode(), rules=QuestionRules())
    cassette = Cassette(key=question.key, question=question, takes=(Said(text="x"),), recorded_at="t")
    data, _ = codec.dumps(redact.redacted(cassette, secrets={"ACME_KEY": KEY}, rules=()))
    (line,) = [number for number, text in enumerate(data.decode().split("\n"), 1) if KEY in text]
    with pytest.raises(SecretError) as caught:
        redact.refuse_secrets(data, secrets={"ACME_KEY": KEY}, name="it")
    assert f"ACME_KEY at line {line}" in str(caught.value)
    assert KEY not in str(caught.value)
    assert "[[tool.sealtape.redact]]" in str(caught.value)


def test_the_line_is_the_one_an_editor_shows() -> None:
    data = f"a\u2028b\x0c\nc\n{SHAPES['aws']}\n".encode()
    assert [finding.place for finding in redact.find_secrets(data, {})] == ["line 3"]


@pytest.mark.parametrize("name", ["Set-Cookie", "set-cookie", "SET-COOKIE"])
def test_cookies_keep_their_name_and_attributes(name: str) -> None:
    data = written(answer(b"", (name, "sid=abc123; Path=/; HttpOnly"), (name, "b=def456")))
    assert b"abc123" not in data
    assert b"def456" not in data
    (read,) = codec.loads(data, name="x").takes
    assert isinstance(read, Answer)
    assert read.headers == ((name, "sid=REDACTED; Path=/; HttpOnly"), (name, "b=REDACTED"))


@pytest.mark.parametrize(
    "name", ["Authorization", "X-API-KEY", "api-key", "x-goog-api-key", "OpenAI-Organization", "X-Amz-Security-Token"]
)
def test_credential_headers_are_hidden_in_any_case_and_every_time(name: str) -> None:
    headers = ((name, "first-value"), (name.lower(), "second-value"), (name.upper(), "third-value"))
    data = written(answer(b"", *headers))
    assert b"-value" not in data
    assert data.count(b"REDACTED") == 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", ["body", "header", "stream"])
def test_the_shape_of_a_token_stops_the_write(shape: str, place: str) -> None:
    text = f"it is {SHAPES[shape]} of course"
    take = {
        "body": answer(json.dumps({"text": text}).encode(), JSON),
        "header": answer(b"", ("x-echo", text)),
        "stream": answer(f"data: {text}\n\n".encode(), ("content-type", "text/event-stream")),
    }[place]
    with pytest.raises(SecretError, match=r"at line \d+") as caught:
        written(take)
    assert SHAPES[shape] not in str(caught.value)


def test_what_models_write_every_day_is_no_token() -> None:
    texts = [
        "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "password: ask your admin; api_key = os.environ['KEY']",
        "sk-learn, task-force and risk-averse",
        base64.b64encode(bytes(range(256))).decode(),
        "192.168.0.1 and 8.8.8.8, https://user:pass@example.com/",
        "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz012 msg_01XFDUDYJgAACzvnptvVoYEL call_abc123DEF456ghi789JKL012",
    ]
    assert redact.find_secrets("\n".join(texts).encode(), {}) == []


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"])
def test_a_placeholder_that_a_test_sends_is_hidden_like_a_key(variable: str) -> None:
    value = placeholder_for(variable, fresh=True)
    assert value.encode() not in written(answer(f"you sent {value}".encode()), secrets={variable: value})


def test_issued_tokens_are_hidden_and_the_answer_stays_one() -> None:
    body = {
        "access_token": "abc",
        "refresh_token": "def",
        "id_token": "ghi",
        "expires_in": 3600,
        "token_type": "Bearer",
    }
    (read,) = codec.loads(written(answer(json.dumps(body).encode(), JSON)), name="x").takes
    assert isinstance(read, Answer)
    hidden = dict.fromkeys(("access_token", "refresh_token", "id_token"), "REDACTED")
    assert json.loads(read.body) == {**body, **hidden}


def test_configured_patterns_reach_body_headers_and_texts() -> None:
    rule = Redaction(pattern=re.compile(r"cust_[a-z0-9]+"), replacement="cust_redacted")
    for take in (answer(b"for cust_a1", ("x-customer", "cust_a1")), Said(text="for cust_a1")):
        data = written(take, rules=(rule,))
        assert b"cust_a1" not in data
        assert b"cust_redacted" in data
    assert written(answer(b"\xff cust_a1"), rules=(rule,))  # no text: nothing to replace, nothing to break


def test_what_the_application_saw_is_not_changed() -> None:
    take = answer(f"echo {KEY}".encode(), ("Set-Cookie", "sid=abc"), ("X-Api-Key", KEY))
    before = (take.body, take.headers, take.chunks)
    written(take, secrets={"ACME_KEY": KEY})
    assert (take.body, take.headers, take.chunks) == before


def test_nothing_is_replaced_where_nothing_is_secret(tmp_path: Path) -> None:
    take = answer(b'{"text": "Hello"}', JSON, ("x-path", str(tmp_path)))
    assert codec.loads(written(take, secrets={"ACME_KEY": KEY, "EMPTY": ""}), name="x").takes == (take,)
