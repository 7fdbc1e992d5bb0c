"""The guest's side of the broker: how a call is handed through the door, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

ANSWER_HEADER = "sealtape-answer"
REASON_HEADER = "sealtape-reason"
_PRIVATE = "sealtape-"


@dataclass(frozen=True, kw_only=True)
class Door:
    """The broker's unix socket, and the token that opens it."""

    socket: Path
    token: str = field(repr=False)

    def headers(self, url: str, *, test: str, connect: float | None = None) -> list[tuple[str, str]]:
        """What the broker wants to know beside the call itself. It strips them before it calls.

        `connect` is the client's limit for that, in seconds. Its other limits it keeps itself: the
        bytes reach it as they come, and the exception is then its own. Two clocks would race.
        """
        return [
            ("sealtape-url", url),
            ("sealtape-token", self.token),
            ("sealtape-test", quote(test)),
            ("sealtape-timeout", json.dumps({"connect": connect})),
        ]


@dataclass(frozen=True, kw_only=True)
class Declined:
    """The broker's own answer: it refused the call, or the provider could not be reached."""

    failure: str | None
    message: str


def declined(headers: Sequence[tuple[str, str]], body: bytes) -> Declined:
    document = json.loads(body)
    kind = document["kind"] if answered_by(headers) == "failure" else None
    return Declined(failure=kind, message=document["message"])


def answered_by(headers: Sequence[tuple[str, str]]) -> str | None:
    """`live` for a provider's answer, `refused` or `failure` for the broker's own."""
    return next((value for name, value in headers if name.lower() == ANSWER_HEADER), None)


def reason(headers: Sequence[tuple[str, str]]) -> str | None:
    """The provider's own reason phrase; the one on the status line is the broker's server's."""
    return next((value for name, value in headers if name.lower() == REASON_HEADER), None)


def without_private(headers: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The headers that are the provider's."""
    return tuple((name, value) for name, value in headers if not name.lower().startswith(_PRIVATE))


_door: Door | None = None


def current() -> Door | None:
    """The door of this record session; None where calls go out directly, or not at all."""
    return _door


@contextmanager
def in_use(door: Door | None) -> Iterator[None]:
    global _door  # noqa: PLW0603 -- as with the deck: one for every thread of the process
    before, _door = _door, door
    try:
        yield
    finally:
        _door = before
