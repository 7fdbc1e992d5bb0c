"""The file: a cassette as JSON that people review, and back, byte for byte what was recorded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from sealtape.cassette.key import parse_json
from sealtape.cassette.model import FAILURES, Answer, Cassette, Failure, Question, Said, Take
from sealtape.cassette.reading import event_texts, model_of, prompt_sha, text_of, usage_of
from sealtape.errors import CassetteError

FORMAT = 1
# Bytes that are not text go beside the cassette from this size on, text from the larger one.
BLOB_BINARY = 1024
BLOB_TEXT = 256 * 1024

_KEY = re.compile(r"[0-9a-f]{16}")
_SHA = re.compile(r"[0-9a-f]{64}")
Blobs = Mapping[str, bytes]


def dumps(cassette: Cassette) -> tuple[bytes, dict[str, bytes]]:
    """The file's bytes, and the blobs that belong beside it, by their SHA-256."""
    blobs: dict[str, bytes] = {}
    question = cassette.question
    last = cassette.takes[-1]
    document: dict[str, Any] = {
        "key": cassette.key,
        "model": model_of(question) if question else cassette.model,
        "prompt_sha": prompt_sha(question) if question else None,
        "text": text_of(last),
        "usage": usage_of(last),
        "recorded_at": cassette.recorded_at,
    }
    if question:
        document["question"] = {"form": question.form, **question.data} if question.form == "http" else question.data
    document["takes"] = [_take(take, blobs) for take in cassette.takes]
    document["format"] = FORMAT
    return (_render({k: v for k, v in document.items() if v is not None}) + "\n").encode(), blobs


def loads(data: bytes, *, name: str, blob: Callable[[str], bytes] | None = None) -> Cassette:
    """A cassette from a file's bytes. Raises `CassetteError`, naming the file and the place.

    `blob` gives the bytes of a SHA-256; without it, bodies that lie in blobs stay empty.
    """
    try:
        document = parse_json(data.decode("utf-8"))
        return _cassette(document, blob)
    except _DefectError as error:
        raise CassetteError(f"{name} {error}") from error
    except ValueError as error:
        raise CassetteError(f"{name} is not valid JSON: {error}") from error


def blobs_of(data: bytes) -> set[str]:
    """The blobs that a cassette's bytes refer to."""
    return set(re.findall(r'"blob": "([0-9a-f]{64})"', data.decode("utf-8")))


class _DefectError(Exception):
    """What is wrong with a document, as the end of a sentence that begins with the file's name."""


def _cassette(document: Any, blob: Callable[[str], bytes] | None) -> Cassette:
    if not isinstance(document, dict):
        raise _DefectError("is not a JSON object")
    if (version := document.get("format", FORMAT)) != FORMAT:
        raise _DefectError(f"has format {version!r}; this version of sealtape reads format {FORMAT}")
    key = document.get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise _DefectError(f"has the key {key!r}; a key is 16 hex digits")
    recorded_at = document.get("recorded_at", "")
    if "question" not in document and "takes" not in document:
        text = document.get("text")
        if not isinstance(text, str):
            raise _DefectError("has neither takes nor a text")
        said = Said(text=text, usage=document.get("usage"))
        return Cassette(key=key, takes=(said,), recorded_at=recorded_at, model=document.get("model"))
    data = document.get("question")
    takes = document.get("takes")
    if not isinstance(data, dict) or not isinstance(takes, list) or not takes:
        raise _DefectError("needs a question and at least one take")
    if data.get("form") == "http":
        question = Question("http", {k: v for k, v in data.items() if k != "form"})
    else:
        question = Question("call", data)
    if question.key != key:
        raise _DefectError(f"says its key is {key}, but its question hashes to {question.key}: one of them was edited")
    return Cassette(
        key=key,
        question=question,
        takes=tuple(_untake(f"takes[{i}]", take, blob) for i, take in enumerate(takes)),
        recorded_at=recorded_at,
    )


def _take(take: Take, blobs: dict[str, bytes]) -> dict[str, Any]:
    match take:
        case Said():
            return {"text": take.text, **({"usage": take.usage} if take.usage else {})}
        case Failure():
            after = {"after": _take(take.after, blobs)} if take.after else {}
            return {"failure": take.kind, "message": take.message, **after}
        case Answer():
            document: dict[str, Any] = {"status": take.status}
            if take.reason:
                document["reason"] = take.reason
            if take.http_version != "HTTP/1.1":
                document["http_version"] = take.http_version
            document["headers"] = [[name, value] for name, value in take.headers]
            document |= _body(take.body, take.header("content-type") or "", blobs)
            if len(take.chunks) > 1:
                document["chunks"] = list(take.chunks)
            if take.partial:
                document["partial"] = True
            return document
    raise AssertionError(take)


def _untake(where: str, document: Any, blob: Callable[[str], bytes] | None) -> Take:
    if not isinstance(document, dict):
        raise _DefectError(f"has no object at {where}")
    if "failure" in document:
        kind = document["failure"]
        if kind not in FAILURES:
            raise _DefectError(f"has the failure {kind!r} at {where}; known: {', '.join(FAILURES)}")
        if not isinstance(document.get("message", ""), str):
            raise _DefectError(f"has a message that is no text at {where}")
        after = _untake(f"{where}.after", document["after"], blob) if "after" in document else None
        return Failure(
            kind=kind, message=document.get("message", ""), after=after if isinstance(after, Answer) else None
        )
    if "status" not in document:
        if not isinstance(document.get("text"), str):
            raise _DefectError(f"has neither a status, a failure nor a text at {where}")
        return Said(text=document["text"], usage=document.get("usage"))
    try:
        body = _unbody(document, blob)
        return Answer(
            status=int(document["status"]),
            reason=document.get("reason", ""),
            http_version=document.get("http_version", "HTTP/1.1"),
            headers=tuple((str(name), str(value)) for name, value in document.get("headers", [])),
            body=body,
            chunks=tuple(int(size) for size in document["chunks"])
            if "chunks" in document
            else (len(body),)
            if body
            else (),
            partial=document.get("partial", False),
        )
    except (TypeError, ValueError) as error:
        raise _DefectError(f"cannot be read at {where}: {error}") from error


def _body(body: bytes, content_type: str, blobs: dict[str, bytes]) -> dict[str, Any]:
    if not body:
        return {}
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        if len(body) < BLOB_BINARY:
            return {"base64": base64.b64encode(body).decode()}
        return _blob(body, blobs)
    if content_type.startswith("text/event-stream"):
        return {"events": event_texts(text)}
    if len(body) >= BLOB_TEXT:
        return _blob(body, blobs)
    try:
        value = parse_json(text)
        layout = next((name for name, lay in LAYOUTS.items() if lay(value) == text), None)
    except (ValueError, RecursionError):
        return {"text": text}
    # Where no layout gives the bytes back (odd numbers, unusual spacing), the text stands beside.
    return {"json": value, "layout": layout} if layout else {"json": value, "exact": text}


def _blob(body: bytes, blobs: dict[str, bytes]) -> dict[str, Any]:
    sha = hashlib.sha256(body).hexdigest()
    blobs[sha] = body
    return {"blob": sha, "size": len(body)}


def _unbody(document: Mapping[str, Any], blob: Callable[[str], bytes] | None) -> bytes:
    if "events" in document:
        return "".join(document["events"]).encode()
    if "exact" in document:
        return str(document["exact"]).encode()
    if "json" in document:
        lay = LAYOUTS.get(document.get("layout", ""))
        if lay is None:
            raise _DefectError(f"has the unknown layout {document.get('layout')!r}")
        return lay(document["json"]).encode()
    if "text" in document:
        return str(document["text"]).encode()
    if "base64" in document:
        return base64.b64decode(document["base64"], validate=True)
    if "blob" in document:
        if not _SHA.fullmatch(str(document["blob"])):
            raise _DefectError(f"names the blob {document['blob']!r}, which is no SHA-256")
        return blob(document["blob"]) if blob else b""
    return b""


def _layout(indent: int | None, separators: tuple[str, str], end: str, *, ascii_only: bool) -> Callable[[Any], str]:
    def lay(value: Any) -> str:
        return json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only) + end

    return lay


# The ways in which servers write JSON. A body that one of them reproduces needs no second copy.
LAYOUTS: Mapping[str, Callable[[Any], str]] = {
    name + escapes + ending: _layout(indent, separators, end, ascii_only=bool(escapes))
    for name, indent, separators in (
        ("compact", None, (",", ":")),
        ("spaced", None, (", ", ": ")),
        ("indent-2", 2, (",", ": ")),
        ("indent-4", 4, (",", ": ")),
    )
    for escapes in ("", "+ascii")
    for ending, end in (("", ""), ("+newline", "\n"))
}


def _render(value: Any, indent: str = "") -> str:
    """JSON, one line per thing a reviewer cares about: pairs and arrays of numbers stay on one line."""
    inner = indent + "  "
    match value:
        case dict() if value:
            lines = [f"{inner}{_string(name)}: {_render(item, inner)}" for name, item in value.items()]
            return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
        case list() if value and not _one_line(value):
            return "[\n" + ",\n".join(inner + _render(item, inner) for item in value) + f"\n{indent}]"
        case list():
            return "[" + ", ".join(_render(item) for item in value) + "]"
        case str():
            return _string(value)
    return json.dumps(value)


def _one_line(items: list[Any]) -> bool:
    if all(isinstance(item, int | float) for item in items):
        return True
    return len(items) == 2 and all(isinstance(item, str) for item in items)  # noqa: PLR2004 -- a header or field


def _string(text: str) -> str:
    plain = json.dumps(text, ensure_ascii=False)
    try:
        plain.encode()
    except UnicodeEncodeError:
        return json.dumps(text)  # a lone surrogate: it can only be written as an escape
    return plain
