"""The ledger: what each test asked, what it owes, and what was blocked. It knows pytest only by its reports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pytest

import sealtape
from sealtape.cassette import deck as decks
from sealtape.cassette.deck import OUTSIDE, Deck
from sealtape.cassette.model import FAILURES, Answer, Failure, Take
from sealtape.cassette.reading import usage_of
from sealtape.cassette.store import write_atomically
from sealtape.config import Mode, Settings
from sealtape.errors import ConfigError, SecretError, Unanswered
from sealtape.guest import session
from sealtape.guest.guard import Attempt, Guard, OutsideError
from sealtape.placeholder import placeholder_for

REPORT_VERSION = 1
JOURNAL = "journal.jsonl"
FEW = 3  # tests that a record command names one by one
SHOWN = 20  # lines of one kind in the closing summary

UNANSWERED = ("missed", "refused", "withheld")
_KINDS = ("played", "recorded", *UNANSWERED, "unheard", "blocked")

_PASSES = (KeyboardInterrupt, SystemExit, pytest.exit.Exception)
_OWN = Path(sealtape.__file__).parent


class Ledger:
    """One session's ledger. `report`: where to write the results, beside where the host wants them."""

    def __init__(self, settings: Settings, report: Path | None = None) -> None:
        self.settings = settings
        self.reports = [path for path in (report, settings.guest.report if settings.guest else None) if path]
        self.deck: Deck
        self.guard = Guard(settings.passthrough, self._blocked)
        self.tests: dict[str, dict[str, Any]] = {}
        self._attempts: list[Attempt] = []
        self._stack = ExitStack()
        self._phase_blocked = 0
        self._outermost = True
        self._failed: set[str] = set()  # recordings that only failing tests asked for

    # -- the session --------------------------------------------------------------------------

    def open(self) -> None:
        replayed = self.settings.mode is Mode.REPLAY
        if replayed and self.settings.guest is None:
            # SDK constructors want a key; in replay any will do. A real one that is set stays.
            for name in self.settings.key_variables():
                os.environ.setdefault(name, placeholder_for(name, fresh=False))
        self._outermost = decks.current() is None
        self.deck = self._stack.enter_context(session.running(self.settings))
        if replayed or self.settings.guest is not None:
            self.guard.install()
            if self.settings.guest is None:
                # In a sandbox the guard stays to the very end: code that runs at exit is under it too.
                self._stack.callback(self.guard.remove)

    def close(self) -> None:
        for key in self._failed:
            self.deck.outbox.path(key).unlink(missing_ok=True)
        if self.settings.guest is None or not self._outermost:
            self._stack.close()
        # Else the deck answers to the very end of the process: late threads and exit handlers ask too.

    def header(self) -> str:
        link = self.settings.guest
        folder = os.path.relpath(self.settings.cassettes, self.settings.root)
        count = len(self.deck.store.keys())
        state = f"{self.settings.mode}, {count} cassettes in {folder}"
        if link is not None:
            return f"sealed by {link.engine} · {state}"
        match self.settings.mode:
            case Mode.RECORD:
                return f"{state}; not sealed, with your own key and network"
            case Mode.OFF:
                return "off: calls go out live, and nothing is recorded"
            case _:
                return f"{state}; not sealed: sockets are blocked in Python only (`sealtape replay` seals)"

    # -- one test -----------------------------------------------------------------------------

    @contextmanager
    def test(self, nodeid: str) -> Iterator[None]:
        self.guard.test = nodeid
        try:
            with self.deck.during(nodeid):
                yield
        finally:
            self.guard.test, self.guard.phase = OUTSIDE, "between tests"
            self.renew_guard()

    def inject(self, faults: Sequence[int | str]) -> None:
        """Puts failures in front of what the test that runs now is answered. Raises `ConfigError`."""
        self.deck.faults = [_fault(what) for what in faults]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase of a test. At its end a miss or a refusal is raised, whoever has swallowed it."""
        self.guard.phase = name
        self.renew_guard()
        self._phase_blocked = 0
        try:
            yield
        except _PASSES:
            raise
        except BaseException as error:
            owed = self.deck.settle()
            if owed is None or owed is error:
                raise
            raise _again(owed) from None
        owed = self.deck.settle()
        if owed is not None:
            raise _again(owed)
        if self._phase_blocked and self.settings.blocked == "fail":
            raise OutsideError(f"{self._phase_blocked} attempts to leave this machine were swallowed in this test")

    def renew_guard(self) -> None:
        if self.settings.mode is Mode.REPLAY or self.settings.guest is not None:
            self.guard.renew()

    @staticmethod
    def unforgivable(error: BaseException) -> bool:
        return isinstance(error, Unanswered | SecretError)

    def shortened(self, error: BaseException) -> BaseException:
        """The error with the frames of this project only: those of SDKs and of sealtape explain nothing."""
        kept: TracebackType | None = None
        for frame, instruction, line in reversed(_frames(error.__traceback__)):
            if self._is_projects(Path(frame.f_code.co_filename)):
                kept = TracebackType(kept, frame, instruction, line)
        # Where none is left, the outermost must do: pytest wants a place, and inner frames hold values.
        return error.with_traceback(kept or _outermost(error.__traceback__))

    # -- reports ------------------------------------------------------------------------------

    def attach(self, report: pytest.TestReport) -> None:
        """Gives a report what happened since the last one; it travels with it, also between processes."""
        vars(report)["sealtape"] = self._drain()

    def add(self, report: pytest.TestReport) -> None:
        """Counts a report, and closes the books of its test after its last phase."""
        entry = self._count(report.nodeid, getattr(report, "sealtape", {}))
        if report.failed or (report.outcome == "skipped" and entry["outcome"] == "passed"):
            entry["outcome"] = report.outcome
        # A report with a node came from an xdist worker, which has closed the books itself.
        if report.when == "teardown" and self.settings.mode is Mode.RECORD and not hasattr(report, "node"):
            self._close_books(report.nodeid, entry)

    def finish(self) -> bool:
        """Writes the reports. What came too late for any test is counted as outside of them.

        Returns whether something stayed unanswered there: no test could fail for it.
        """
        outside = self._count(OUTSIDE, self._drain())
        document = json.dumps(self.document(), indent=2, ensure_ascii=False).encode() + b"\n"
        for path in self.reports:
            write_atomically(path.absolute(), document)
        return any(outside[kind] for kind in UNANSWERED)

    def document(self) -> dict[str, Any]:
        """The report: per test the keys that were played, recorded, missed, refused, and blocked attempts."""
        used = {key for entry in self.tests.values() for kind in ("played", "recorded") for key in entry[kind]}
        tests = {nodeid: entry for nodeid, entry in self.tests.items() if nodeid != OUTSIDE}
        return {
            "version": REPORT_VERSION,
            "verdict": None,  # the host's to give; without one the run was not sealed
            "mode": str(self.settings.mode),
            "tests": tests,
            "outside_of_tests": self.tests.get(OUTSIDE, _entry()),
            "unused": sorted(set(self.deck.store.keys()) - used),
            "tokens": self._tokens(used),
        }

    def summary(self) -> list[str]:
        """The closing lines: how much was played, what was missed, what was blocked. Empty if nothing was."""
        entries = self.tests.items()
        counts = {kind: sum(len(entry[kind]) for _, entry in entries) for kind in _KINDS}
        if not any(counts.values()):
            return []
        lines = [" · ".join(f"{kind} {n}" for kind, n in counts.items() if n or kind in ("played", "missed"))]
        lines += _some(
            f"missed   {_name(test)}  {call['key']}  {call['title']}" for test, e in entries for call in e["missed"]
        )
        lines += _some(f"refused  {_name(test)}  {call['detail']}" for test, e in entries for call in e["refused"])
        lines += _some(f"withheld {_name(test)}  {call['detail']}" for test, e in entries for call in e["withheld"])
        unheard = dict.fromkeys((test, call["title"]) for test, e in entries for call in e["unheard"])
        lines += _some(f"unheard  {_name(test)}  nobody listens at {place} in here" for test, place in unheard)
        if unheard:
            lines.append('  a model server on this machine needs a grant: hosts = ["http://HOST:PORT"]')
        lines += _some(
            f"blocked  {_name(a['test'])} ({a['phase']})  {a['way']} {a['host']}"
            + (f":{a['port']}" if a["port"] else "")
            for _, e in entries
            for a in e["blocked"]
        )
        missing = list(dict.fromkeys(test for test, e in entries for _ in e["missed"] if test))
        if missing:
            few = len(missing) <= FEW
            command = self.deck.command_for(*missing) if few else f"{self.deck.command} -- --missing"
            lines.append(f"to record what is missing: {command}")
        return lines

    # -- inside -------------------------------------------------------------------------------

    def _blocked(self, attempt: Attempt) -> None:
        self._phase_blocked += 1
        self._attempts.append(attempt)

    def _drain(self) -> dict[str, Any]:
        events, self.deck.events = self.deck.events, []
        attempts, self._attempts = self._attempts, []
        return {"events": [asdict(event) for event in events], "blocked": [attempt.to_json() for attempt in attempts]}

    def _count(self, nodeid: str, drained: dict[str, Any]) -> dict[str, Any]:
        entry = self.tests.setdefault(nodeid, _entry())
        for event in drained.get("events", ()):
            if event["kind"] in ("played", "recorded"):
                entry[event["kind"]].append(event["key"])
            elif event["kind"] in (*UNANSWERED, "unheard"):
                entry[event["kind"]].append({name: event[name] for name in ("key", "title", "detail")})
        entry["blocked"] += drained.get("blocked", ())
        return entry

    def _close_books(self, nodeid: str, entry: dict[str, Any]) -> None:
        """A recorded test has ended: its recordings are good if it passed."""
        link = self.settings.guest
        keys = [*entry["recorded"], *entry["played"]]
        if link is not None and link.outbox is not None:
            # The host decides what it takes in; this tells it what became of each test.
            line = json.dumps(
                {"test": nodeid, "outcome": entry["outcome"], "keys": keys, "refused": bool(entry["refused"])}
            )
            with (link.outbox / JOURNAL).open("a", encoding="utf-8") as journal:
                journal.write(line + "\n")
        elif entry["outcome"] != "failed":
            session.keep(self.deck, keys)
            self._failed.difference_update(keys)
        else:
            # They stay in the outbox: another test may be answered from this session, and pass.
            self._failed.update(entry["recorded"])

    def _tokens(self, keys: Iterable[str]) -> int:
        total = 0
        for key in keys:
            cassette = self.deck.outbox.load(key) or self.deck.store.load(key)
            for take in cassette.takes if cassette else ():
                usage = usage_of(take) or {}
                counted = usage.get("total_tokens") or usage.get("totalTokenCount")
                total += int(counted or usage.get("input_tokens", 0) + usage.get("output_tokens", 0))
        return total

    def _is_projects(self, file: Path) -> bool:
        inside = file.is_relative_to(self.settings.root) and not file.is_relative_to(_OWN)
        return inside and "site-packages" not in file.parts


def _again(owed: BaseException) -> BaseException:
    """What is owed, to be raised where the application had caught it."""
    if isinstance(owed, Unanswered):
        owed.add_note("  (the application caught this and went on; it is raised again at the end of the phase)")
    return owed


def _outermost(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    return TracebackType(None, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def _frames(traceback: TracebackType | None) -> list[tuple[FrameType, int, int]]:
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames


def _entry() -> dict[str, Any]:
    return {"outcome": "passed", **{kind: [] for kind in _KINDS}}


def _some(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    return every if len(every) <= SHOWN else [*every[:SHOWN], f"… and {len(every) - SHOWN} more"]


def _name(test: str) -> str:
    return test or "(outside of a test)"


def _fault(what: int | str) -> Take:
    """A fault of the marker as a take."""
    if isinstance(what, int):
        body = json.dumps({"error": {"message": f"injected fault {what}", "type": "injected", "code": None}}).encode()
        # SDKs wait before they try again; this header, where they honour it, makes it a millisecond.
        headers = (("content-type", "application/json"), ("retry-after-ms", "1"))
        return Answer(status=what, headers=headers, body=body, chunks=(len(body),))
    if what in FAILURES:
        return Failure(kind=what, message="injected fault")
    raise ConfigError(
        f"faults: {what!r} is not known", tip=f"give an HTTP status code, or one of {', '.join(FAILURES)}"
    )
