from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sealtape
from sealtape.cassette.key import http_question, key_for, parse_json
from sealtape.config import QuestionRules, Redaction, Substitution

URL = "https://api.example.com/v1/chat"
JSON_HEADERS = [("Content-Type", "application/json")]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def question(
    body: Any = None, *, url: str = URL, headers: Any = (), rules: QuestionRules | None = None, **more: Any
) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
    return http_question("POST", url, [*JSON_HEADERS, *headers], raw, rules=rules or QuestionRules(), **more)


def test_key_for_is_the_published_formula() -> None:
    formula = hashlib.sha256(
        json.dumps({"model": "m", "prompt": "p", "temperature": 0.0}, sort_keys=True).encode()
    ).hexdigest()[:16]
    assert key_for("m", "p", 0.0) == formula
    assert sealtape.key_for("m", "p", 0.0) == formula


def test_further_parameters_enter_the_key_when_they_are_given() -> None:
    assert key_for("m", "p", 0.0, seed=1) != key_for("m", "p", 0.0)
    assert key_for("m", "p", 0.0, seed=1, top_p=0.5) == key_for("m", "p", 0.0, top_p=0.5, seed=1)


def test_the_order_of_fields_and_the_formatting_do_not_matter() -> None:
    assert question(b'{"a": 1, "b": [2]}').key == question(b'{"b":[2],\n "a":1}').key


@pytest.mark.parametrize(
    "changed",
    [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hi"}],
            "temperature": 0,
            "seed": 1,
            "tools": [{"name": "f"}],
        },
        {
            "model": "n",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "seed": 1,
            "tools": [{"name": "f"}],
        },
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0.1,
            "seed": 1,
            "tools": [{"name": "f"}],
        },
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "seed": 2,
            "tools": [{"name": "f"}],
        },
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "seed": 1,
            "tools": [{"name": "g"}],
        },
        {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "seed": 1},
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "seed": 1,
            "tools": [{"name": "f"}],
            "x": None,
        },
    ],
)
def test_every_field_counts(changed: dict[str, Any]) -> None:
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0,
        "seed": 1,
        "tools": [{"name": "f"}],
    }
    assert question(changed).key != question(asked).key


@given(body=st.dictionaries(st.text(), json_values, min_size=1), name=st.text(), value=json_values)
def test_a_changed_field_changes_the_key(body: dict[str, Any], name: str, value: Any) -> None:
    changed = {**body, name: value}
    same = json.dumps(changed, sort_keys=True) == json.dumps(body, sort_keys=True)
    assert (question(changed).key == question(body).key) == same


def test_credentials_never_enter() -> None:
    plain = question({"a": 1})
    asked = question(
        {"a": 1},
        headers=[
            ("Authorization", "Bearer sk-1"),
            ("X-Api-Key", "k"),
            ("Cookie", "c=1"),
            ("OpenAI-Organization", "org"),
        ],
        url=f"{URL}?key=AIzaSyA1234567890abcdef&api_key=x",
    )
    assert asked.data == plain.data


def test_a_host_that_takes_its_key_in_the_query_gets_the_same_question_with_any_key() -> None:
    asked = [
        question({"a": 1}, url=f"{URL}{query}", credential_field="key").key for query in ("", "?key=A", "?key=fake")
    ]
    assert len(set(asked)) == 1


def test_a_field_that_merely_has_the_name_of_a_credential_counts() -> None:
    assert question({}, url=f"{URL}?key=red").key != question({}, url=f"{URL}?key=blue").key


def test_another_credential_is_another_question() -> None:
    assert question({"a": 1}, foreign_credential=True).key != question({"a": 1}).key


def test_the_query_is_sorted_and_the_host_is_normalised() -> None:
    assert question({}, url="https://API.example.com:443/v1/chat?b=2&a=1").key == question({}, url=f"{URL}?a=1&b=2").key


@pytest.mark.parametrize(
    "header", [("anthropic-version", "1"), ("OpenAI-Beta", "x"), ("Accept", "audio/mpeg"), ("Range", "bytes=0-1")]
)
def test_headers_that_change_an_answer_count(header: tuple[str, str]) -> None:
    assert question({}, headers=[header]).key != question({}).key


@pytest.mark.parametrize(
    "header", [("User-Agent", "x"), ("X-Stainless-Retry-Count", "2"), ("Accept", "application/json"), ("Accept", "*/*")]
)
def test_other_headers_do_not(header: tuple[str, str]) -> None:
    assert question({}, headers=[header]).key == question({}).key


def multipart(boundary: str, data: bytes = b"\x00\x01", field: str = "whisper") -> Any:
    body = (
        (
            f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{field}\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
            f"Content-Type: audio/wav\r\n\r\n"
        ).encode()
        + data
        + f"\r\n--{boundary}--\r\n".encode()
    )
    headers = [("Content-Type", f"multipart/form-data; boundary={boundary}")]
    return http_question("POST", URL, headers, body, rules=QuestionRules())


def test_a_multipart_boundary_does_not_matter_but_every_byte_does() -> None:
    assert multipart("abc").key == multipart("xyz").key
    assert "multipart" in multipart("abc").data
    assert multipart("abc", b"\x00\x02").key != multipart("abc").key
    assert multipart("abc", field="other").key != multipart("abc").key


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"],
)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"a":1,"a":2}', b"[NaN]", b"1e400", b"[" * 100_000])
def test_any_body_has_a_question_of_its_own(content_type: str, body: bytes) -> None:
    def asked(raw: bytes) -> str:
        return http_question("POST", URL, [("Content-Type", content_type)], raw, rules=QuestionRules()).key

    assert asked(body) != asked(body + b"x")


def test_form_fields_are_sorted_and_their_credentials_hidden() -> None:
    headers = [("content-type", "application/x-www-form-urlencoded")]
    one = http_question("POST", URL, headers, b"grant_type=refresh_token&refresh_token=abc", rules=QuestionRules())
    two = http_question("POST", URL, headers, b"refresh_token=xyz&grant_type=refresh_token", rules=QuestionRules())
    assert one.data == two.data
    assert "abc" not in json.dumps(one.data)


def test_ignored_pointers_are_scoped_by_path() -> None:
    rules = QuestionRules(ignore=("/body/metadata", "/body/messages/*/id", "/query/ts"))
    body = {"metadata": {"run": 1}, "messages": [{"id": "a", "content": "x"}], "id": "kept"}
    other = {"metadata": {"run": 2}, "messages": [{"id": "b", "content": "x"}], "id": "kept"}
    assert question(body, url=f"{URL}?ts=1", rules=rules).key == question(other, url=f"{URL}?ts=2", rules=rules).key
    assert question({**body, "id": "changed"}, rules=rules).key != question(body, rules=rules).key


def test_substitutions_work_below_their_pointer_only() -> None:
    date = Substitution(at="/body/messages", pattern=re.compile(r"\d{4}-\d{2}-\d{2}"), replacement="<date>")
    rules = QuestionRules(substitute=(date,))
    one = question({"messages": [{"content": "Today is 2026-01-01"}], "day": "2026-01-01"}, rules=rules)
    two = question({"messages": [{"content": "Today is 2026-02-02"}], "day": "2026-01-01"}, rules=rules)
    assert one.key == two.key
    assert question({"messages": [{"content": "Today is 2026-01-01"}], "day": "2026-02-02"}, rules=rules).key != one.key


@pytest.mark.parametrize(
    ("level", "same"),
    [
        ("exact", []),
        ("newlines", ["a\r\n  b "]),
        ("trailing", ["a\r\n  b ", "a  \n  b"]),
        ("collapse", ["a\r\n  b ", "a  \n  b", "a b", " a\n\n b"]),
    ],
)
def test_whitespace_levels(level: Any, same: list[str]) -> None:
    rules = QuestionRules(whitespace=level)
    asked = question({"prompt": "a\n  b "}, rules=rules).key
    for text in ["a\r\n  b ", "a  \n  b", "a b", " a\n\n b"]:
        assert (question({"prompt": text}, rules=rules).key == asked) == (text in same), text


def test_configured_redactions_apply_before_the_key_is_made() -> None:
    rule = Redaction(pattern=re.compile(r"cust_[a-z0-9]+"), replacement="cust_redacted")
    one, two = (question({"prompt": f"for {name}"}, redact=[rule]) for name in ("cust_a1", "cust_b2"))
    assert one.key == two.key
    assert "cust_a1" not in json.dumps(one.data)


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', "NaN", "[Infinity]", "1e999", "[" * 100_000])
def test_json_that_cannot_be_kept_is_not_parsed(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
