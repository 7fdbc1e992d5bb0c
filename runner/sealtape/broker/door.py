"""The host's end of a running broker: its configuration in, its events out, a summary at the end."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from sealtape.broker.wire import BrokerConfig, CallEvent, Why
from sealtape.errors import EngineError

READY_SECONDS = 20.0
END_SECONDS = 5.0


class Door:
    """A broker process, given as plain callables, whatever engine started it.

    `send` writes to its standard input; `lines` are the lines of its output, standard error
    among them if the engine can; `close` closes its standard input, upon which it ends. Every
    call is appended to `audit` as it is reported, so that a killed run keeps its log.
    """

    def __init__(
        self,
        *,
        send: Callable[[bytes], object],
        lines: Iterable[bytes],
        close: Callable[[], object],
        audit: Path,
    ) -> None:
        self.calls: list[CallEvent] = []
        self._send = send
        self._lines = lines
        self._close = close
        self._audit = audit
        # Set when the broker is ready, or when it has said its last word.
        self._settled = threading.Event()
        self._ready = False
        self._last_words: list[str] = []
        self._reader = threading.Thread(target=self._read, name="sealtape-door", daemon=True)

    def open(self, config: BrokerConfig) -> None:
        """Hands over the configuration and waits. Raises `EngineError` with the broker's last words."""
        self._reader.start()
        try:
            self._send(config.to_line())
        except OSError as error:
            self._last_words.append(str(error))
            self._settled.set()
        if not self._settled.wait(READY_SECONDS):
            self._close()
            raise EngineError(f"the broker was not ready within {READY_SECONDS:.0f} s{self._said()}")
        if not self._ready:
            self._close()
            raise EngineError(f"the broker ended before it was ready{self._said()}")

    def close(self) -> None:
        """Ends the broker and waits until its last event is read."""
        self._close()
        self._reader.join(END_SECONDS)

    def summary(self) -> list[str]:
        """The session in a few lines: calls and tokens per grant, then what was refused or failed."""
        made = [call for call in self.calls if call.refused is None]
        lines = [f"{_count(len(made), 'live call')}{_tokens(made)}"]
        grants = Counter(call.grant for call in made)
        if len(grants) > 1:
            of = {grant: [call for call in made if call.grant == grant] for grant in grants}
            lines += [f"  {grant}: {_count(n, 'call')}{_tokens(of[grant])}" for grant, n in grants.most_common()]
        for (host, why), number in Counter((call.host, call.refused) for call in self.calls if call.refused).items():
            lines.append(f"  refused: {host or 'unreadable URL'}, {_count(number, 'call')} ({_REASONS[Why(why)]})")
        for (host, kind), number in Counter((call.host, call.failure) for call in made if call.failure).items():
            lines.append(f"  failed: {host}, {_count(number, 'call')} ({kind.replace('_', ' ')})")
        return lines

    def _read(self) -> None:
        try:
            with self._audit.open("a", encoding="utf-8") as audit:
                for line in self._lines:
                    self._take(line, audit)
        finally:
            self._settled.set()

    def _take(self, line: bytes, audit: TextIO) -> None:
        event = _event(line)
        match event.get("event"):
            case "ready":
                self._ready = True
                self._settled.set()
            case "call":
                call = CallEvent.from_dict(event)
                audit.write(call.to_line() + "\n")
                audit.flush()
                self.calls.append(call)
            case "error":
                self._last_words.append(str(event.get("message")))
            case _:
                self._last_words.append(line.decode("utf-8", "replace").rstrip())

    def _said(self) -> str:
        return "".join(f"\n  {words}" for words in self._last_words[-5:])


_REASONS: dict[Why, str] = {
    Why.TOKEN: "wrong token",
    Why.HOST: "no grant names it",
    Why.SCHEME: "granted over https only",
    Why.METHOD: "method not granted",
    Why.PATH: "path not granted",
    Why.BUDGET: "budget spent, see --max-calls",
    Why.CREDENTIAL: "key in the wrong place",
    Why.ADDRESS: "not a public address",
    Why.TOO_LARGE: "too large",
    Why.ENCODED: "compressed answer",
    Why.BAD_REQUEST: "not a request that can be recorded",
}


def _event(line: bytes) -> dict[str, Any]:
    """A line as an event; empty for anything else, such as a traceback."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _tokens(calls: list[CallEvent]) -> str:
    known = [call.tokens for call in calls if call.tokens is not None]
    return f", {sum(known):,} tokens" if known else ""
