from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sealtape.cassette import codec
from sealtape.cassette.key import call_question, http_question
from sealtape.cassette.model import FAILURES, Answer, Cassette, Failure, Said, Take
from sealtape.config import QuestionRules
from sealtape.errors import CassetteError

QUESTION = http_question(
    "POST",
    "https://api.example.com/v1/chat",
    [("content-type", "application/json")],
    b'{"model": "m", "messages": [{"role": "user", "content": "Hello \xe2\x80\x99 \\ud83d"}], "temperature": 0.5}',
    rules=QuestionRules(),
)


def cassette(*takes: Take) -> Cassette:
    return Cassette(key=QUESTION.key, question=QUESTION, takes=takes, recorded_at="2026-01-01T00:00:00Z")


def round_trip(written: Cassette) -> Cassette:
    data, blobs = codec.dumps(written)
    json.loads(data)
    return codec.loads(data, name="x.json", blob=blobs.__getitem__)


def answer(body: bytes, content_type: str = "application/json", **more: Any) -> Answer:
    return Answer(
        status=200, headers=(("Content-Type", content_type),), body=body, chunks=(len(body),) if body else (), **more
    )


headers = st.lists(
    st.tuples(st.text(st.characters(max_codepoint=255), min_size=1), st.text(st.characters(max_codepoint=255))),
    max_size=4,
)


@given(
    pieces=st.lists(st.binary(min_size=1), max_size=5),
    content_type=st.sampled_from(["", "application/json", "text/event-stream", "text/plain", "image/png"]),
    extra=headers,
    partial=st.booleans(),
    status=st.integers(100, 599),
)
@example(pieces=[b"x" * 5000, b"\xff" * 5000], content_type="image/png", extra=[], partial=False, status=200)
@example(
    pieces=[b'data: {"a": 1}\r\n\r\n', b"data: [DONE]\n\n\n", b"\r\r"],
    content_type="text/event-stream",
    extra=[],
    partial=False,
    status=200,
)
def test_any_answer_comes_back_byte_for_byte(
    pieces: list[bytes], content_type: str, extra: list[tuple[str, str]], *, partial: bool, status: int
) -> None:
    body = b"".join(pieces)
    take = Answer(
        status=status,
        headers=(("Content-Type", content_type), *extra),
        body=body,
        chunks=tuple(map(len, pieces)),
        reason="Fine",
        http_version="HTTP/2",
        partial=partial,
    )
    read = round_trip(cassette(take))
    assert read.takes == (take,)
    assert read.question == QUESTION
    assert [piece for piece in take.pieces() if piece] == pieces


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
        max_leaves=10,
    ),
    indent=st.sampled_from([None, 1, 2, 4]),
    ascii_only=st.booleans(),
    end=st.sampled_from(["", "\n", " "]),
)
def test_json_comes_back_in_its_own_layout(value: Any, indent: int | None, *, ascii_only: bool, end: str) -> None:
    body = (json.dumps(value, indent=indent, ensure_ascii=ascii_only) + end).encode("utf-8", "surrogatepass")
    assert round_trip(cassette(answer(body))).takes == (answer(body),)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2}',
        b'{"a": 1.0, "b": 1, "c": 12345678901234567890}',
        b"[1e400]",
        b"[NaN]",
        b"\xef\xbb\xbf{}",
        b'"\\ud83d"',
        b"{'a'}",
        b"[1.10]",
        '{"a": "\u2019"}'.encode(),
        b'{"n": "\\u0000"}',
    ],
)
def test_odd_json_comes_back_byte_for_byte(body: bytes) -> None:
    assert round_trip(cassette(answer(body))).takes == (answer(body),)


def test_a_file_is_written_for_review() -> None:
    take = answer(
        b'{"model":"m","choices":[{"message":{"content":"Hi"}}],"embedding":[1,2,3],"usage":{"total_tokens":3}}'
    )
    text = codec.dumps(cassette(take))[0].decode()
    document = json.loads(text)
    assert list(document) == [
        "key",
        "model",
        "prompt_sha",
        "text",
        "usage",
        "recorded_at",
        "question",
        "takes",
        "format",
    ]
    assert (document["model"], document["text"], document["usage"]) == ("m", "Hi", {"total_tokens": 3})
    assert '"embedding": [1, 2, 3]' in text
    assert '["Content-Type", "application/json"]' in text
    assert text.endswith("}\n")


def test_an_event_stream_has_one_line_for_each_event() -> None:
    take = answer(b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n', "text/event-stream; charset=utf-8")
    document = json.loads(codec.dumps(cassette(take))[0])
    assert document["takes"][0]["events"] == ['data: {"a": 1}\n\n', 'data: {"a": 2}\n\n', "data: [DONE]\n\n"]


def test_large_binaries_lie_beside_and_are_shared() -> None:
    image = answer(b"\x89PNG" + b"\xff" * 5000, "image/png")
    data, blobs = codec.dumps(cassette(image, image))
    assert len(blobs) == 1
    assert codec.blobs_of(data) == set(blobs)
    assert len(data) < 2500


@pytest.mark.parametrize("kind", FAILURES)
def test_failures_come_back(kind: str) -> None:
    alone = Failure(kind=kind, message="so it was")
    broken = Failure(kind=kind, after=answer(b"half of", "text/plain"))
    assert round_trip(cassette(alone, broken)).takes == (alone, broken)


def test_a_call_is_written_with_its_text_and_its_question() -> None:
    question = call_question("m", "p", 0.0, {"seed": 1})
    written = Cassette(
        key=question.key, question=question, takes=(Said(text="Yes", usage={"total_tokens": 2}),), recorded_at="t"
    )
    assert round_trip(written) == written
    document = json.loads(codec.dumps(written)[0])
    assert document["question"] == {"model": "m", "prompt": "p", "temperature": 0.0, "seed": 1}
    assert document["text"] == "Yes"


def test_a_file_of_the_simple_form_is_read_as_it_is() -> None:
    simple = {
        "key": "0123456789abcdef",
        "model": "m",
        "prompt_sha": "ab",
        "text": "Yes",
        "usage": {},
        "recorded_at": "2025-01-01",
    }
    read = codec.loads(json.dumps(simple).encode(), name="x.json")
    assert (read.key, read.takes, read.question) == ("0123456789abcdef", (Said(text="Yes", usage={}),), None)


def edited(**changes: Any) -> bytes:
    document = json.loads(codec.dumps(cassette(answer(b"{}")))[0])
    return json.dumps({**document, **changes}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"key": "0123456789abcdef", "key": "x"}', "duplicate keys"),
        (b"[" * 100_000, "nested too deeply"),
        (edited(format=2), "this version of sealtape reads format 1"),
        (edited(key="xyz"), "a key is 16 hex digits"),
        (edited(key="0123456789abcdef"), "one of them was edited"),
        (edited(question={"form": "http", "method": "GET", "url": "https://a/"}), "one of them was edited"),
        (edited(takes=[]), "at least one take"),
        (edited(takes=[{"failure": "boredom"}]), "boredom"),
        (edited(takes=[{}]), "takes[0]"),
        (edited(takes=["x"]), "takes[0]"),
        (edited(takes=[{"status": 200, "json": 1, "layout": "odd"}]), "layout"),
        (edited(takes=[{"status": 200, "blob": "../../etc/passwd"}]), "no SHA-256"),
        (edited(takes=[{"status": 200, "base64": "%"}]), "takes[0]"),
        (edited(takes=[{"status": "soon"}]), "takes[0]"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_place(data: bytes, message: str) -> None:
    with pytest.raises(CassetteError) as caught:
        codec.loads(data, name="cassettes/x.json")
    assert "cassettes/x.json" in str(caught.value)
    assert message in str(caught.value)
