"""What a recording is made of: a question, and the takes that answer it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

# A transport failure, by what happened; each seam maps these to its library's own exceptions.
FAILURES = (
    "connect_error",
    "connect_timeout",
    "pool_timeout",
    "protocol_error",
    "proxy_error",
    "read_error",
    "read_timeout",
    "write_error",
    "write_timeout",
)


@dataclass(frozen=True)
class Question:
    """A request in canonical form: JSON, all that can change the answer and nothing else.

    `form` is "call" for `sealtape.call` (data: model, prompt, temperature, further parameters)
    and "http" for a request of an HTTP client (data: method, url, query, headers, and one of
    body, form, multipart, text, binary).
    """

    form: Literal["call", "http"]
    data: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        return key_of(self.data)

    @property
    def subject(self) -> Mapping[str, Any]:
        """Where the model's parameters stand: the data of a call, or the JSON body of a request."""
        if self.form == "call":
            return self.data
        body = self.data.get("body")
        return body if isinstance(body, dict) else {}

    @property
    def title(self) -> str:
        """One line that says what is asked of whom: `POST https://…` or `call(model)`."""
        if self.form == "call":
            return f"call({self.data.get('model')!r})"
        return f"{self.data['method']} {self.data['url']}"


def key_of(data: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of `data` as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An HTTP response as it came over the wire.

    `headers` keep order, case and duplicates. `chunks` are the sizes in bytes in which `body`
    arrived. `partial`: the application stopped reading before the end.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    chunks: tuple[int, ...] = ()
    reason: str = ""
    http_version: str = "HTTP/1.1"
    partial: bool = False

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    def pieces(self) -> list[bytes]:
        """The body in the chunks it arrived in."""
        pieces, start = [], 0
        for size in self.chunks:
            pieces.append(self.body[start : start + size])
            start += size
        if start < len(self.body):
            pieces.append(self.body[start:])
        return pieces


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A transport failure: one of `FAILURES`, perhaps after the beginning of an answer."""

    kind: str
    message: str = ""
    after: Answer | None = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """What `sealtape.call` got: the model's text, and the usage it reported."""

    text: str
    usage: Mapping[str, Any] | None = None


Take = Answer | Failure | Said


@dataclass(frozen=True, kw_only=True)
class Cassette:
    """One file: a question and its takes, in the order they were recorded.

    `question` is None for a file of the simple form, which carries only the model's name.
    """

    key: str
    takes: tuple[Take, ...]
    recorded_at: str
    question: Question | None = None
    model: str | None = None
