"""The deck decides, per question and mode, whether to play, to record, or to raise `CassetteMiss`."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from sealtape.cassette import codec, miss, redact
from sealtape.cassette.key import call_question, http_question
from sealtape.cassette.model import Answer, Cassette, Failure, Question, Take
from sealtape.cassette.reading import essence, prompt_of
from sealtape.cassette.store import Store
from sealtape.config import Grant, Mode, Settings, origin_of
from sealtape.errors import CallRefused, CassetteError, CassetteMiss, SecretError, Unanswered

OUTSIDE = ""  # the "test" of what is asked outside of any test: imports, session fixtures

Route = Literal["deck", "pass", "ignore"]
# "withheld": a recording that would have carried a secret; "unheard": nobody listened on loopback.
Kind = Literal["played", "recorded", "missed", "refused", "withheld", "unheard", "ignored"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One call, for the ledger and the report."""

    kind: Kind
    key: str
    title: str
    test: str
    detail: str = ""


@dataclass(eq=False)
class Recording:
    """A call that goes out: what the seam tells of it becomes a take."""

    deck: Deck
    question: Question
    test: str
    take: Take | None = None
    _head: Answer | None = None
    _chunks: list[bytes] = field(default_factory=list)

    def begin(self, head: Answer) -> None:
        """The status and headers have come; `head` has no body yet."""
        self._head = head

    def chunk(self, data: bytes) -> None:
        self._chunks.append(data)

    def end(self, *, partial: bool = False) -> None:
        """The body is complete, or (`partial`) the application stopped reading."""
        if self.take is None and self._head is not None:
            body = b"".join(self._chunks)
            # An SDK stops reading a stream at its last event; there is nothing after it.
            partial = partial and not body.rstrip().endswith(b"data: [DONE]")
            self.finish(replace(self._head, body=body, chunks=tuple(map(len, self._chunks)), partial=partial))

    def fail(self, kind: str, message: str) -> None:
        """The transport failed, perhaps after the beginning of an answer."""
        after = None
        if self._head is not None:
            after = replace(self._head, body=b"".join(self._chunks), chunks=tuple(map(len, self._chunks)))
        self.finish(Failure(kind=kind, message=message, after=after))

    def finish(self, take: Take) -> None:
        if self.take is None:
            self.take = take
            self.deck.recorded(self)

    def refuse(self, message: str) -> CallRefused:
        """The broker did not carry the call out. Returns what the seam raises."""
        return self.deck.refused(self, message)


class Deck:
    """Plays from `store`, records into `outbox` (its own store where there is no intake).

    `credentials`: per key variable, the value that this process holds for it. `placeholders`
    are values that must never reach a file. One deck serves all threads and tasks of a
    process; `test` names the test that runs now. `spill` is a file that gets a line for
    whatever stays unanswered, as it happens.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: Store,
        outbox: Store | None = None,
        credentials: Mapping[str, str] | None = None,
        missing_only: bool = False,
        command: str = "sealtape record",
        spill: Path | None = None,
    ) -> None:
        self.settings = settings
        self.mode = settings.mode
        self.store = store
        self.outbox = outbox or store
        self.credentials = dict(credentials or {})
        self.missing_only = missing_only
        self.command = command
        self.spill = spill
        self.test = OUTSIDE
        self.faults: list[Take] = []
        self.events: list[Event] = []
        self._owed: list[BaseException] = []
        self._lock = threading.RLock()
        self._asked: dict[tuple[str, str], int] = defaultdict(int)
        self._session: dict[str, list[Recording]] = defaultdict(list)
        self._loaded: dict[str, Cassette | None] = {}

    # -- what the seams ask -------------------------------------------------------------------

    def route(self, scheme: str, host: str, port: int | None) -> Route:
        """Whether a request is the deck's business, goes on as it is, or is answered locally."""
        if self.mode is Mode.OFF:
            return "pass"
        host = host.strip("[]").lower()
        if host in self.settings.ignore_hosts:
            return "ignore"
        if host in self.settings.passthrough and not self.settings.grant_for(origin_of(scheme, host, port)):
            return "pass"
        return "deck"

    def http_question(self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Question:
        parts = urlsplit(url)
        grant = self.settings.grant_for(origin_of(parts.scheme, parts.hostname or "", parts.port))
        return http_question(
            method,
            url,
            headers,
            body,
            rules=self.settings.questions,
            redact=self.settings.redact,
            credential_field=grant.query if grant else None,
            foreign_credential=bool(grant and self._foreign(grant, parts.query, headers)),
        )

    def call_question(self, model: str, prompt: str, temperature: float, parameters: Mapping[str, Any]) -> Question:
        return call_question(model, prompt, temperature, parameters)

    def answer(self, question: Question) -> Take | Recording:
        """A take to play, or a recording to fill. Raises `CassetteMiss`."""
        with self._lock:
            if self.faults:
                self._note("played", question, detail="injected")
                return self.faults.pop(0)
            turn = self._asked[self.test, question.key]
            self._asked[self.test, question.key] += 1
            if self.mode is Mode.RECORD:
                return self._play_or_record(question, turn)
            return self._play(question, turn)

    def ends_here(self, question: Question) -> Unanswered:
        """What a reader gets who wants more of an answer than the application read when it was recorded."""
        command = self.command_for(self.test)
        text = f"the recording of {question.title} ends here: when it was made, nobody read on"
        return self._missed(question, f"{text}\n  key          {question.key}\n  record it    {command}")

    def unheard(self, host: str, port: int | None) -> None:
        """A passed-through call found nobody. In a sandbox that is most often a server that wants a grant."""
        title = host if port is None else f"{host}:{port}"
        self.events.append(Event(kind="unheard", key="", title=title, test=self.test))

    def ignored(self, title: str) -> Answer:
        """The answer to a call to an ignored host: a success that says nothing."""
        self.events.append(Event(kind="ignored", key="", title=title, test=self.test))
        return Answer(status=200, headers=(("content-type", "application/json"),), body=b"{}")

    # -- the ledger ---------------------------------------------------------------------------

    def settle(self) -> BaseException | None:
        """What the test that runs now still owes: its first miss or refusal, whoever swallowed it."""
        with self._lock:
            owed, self._owed = self._owed, []
        return owed[0] if owed else None

    @contextmanager
    def during(self, test: str, faults: Sequence[Take] = ()) -> Iterator[None]:
        """Counts what is asked meanwhile as asked by `test`. `faults` answer its first questions."""
        before, self.test, self.faults = self.test, test, list(faults)
        try:
            yield
        finally:
            self.test, self.faults = before, []

    # -- recording ----------------------------------------------------------------------------

    def recorded(self, recording: Recording) -> None:
        """A recording is complete: it goes to disk now, so that a killed run keeps what it paid for."""
        with self._lock:
            question = recording.question
            takes = [r.take for r in self._session[question.key] if r.take is not None]
            if len({repr(essence(take)) for take in takes}) == 1:
                takes = takes[:1]  # asked again, answered the same: a fact
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            cassette = Cassette(key=question.key, question=question, takes=tuple(takes), recorded_at=now)
            secrets = self.secrets()
            clean = redact.redacted(cassette, secrets=secrets, rules=self.settings.redact)
            data, blobs = codec.dumps(clean)
            try:
                for part in (data, *blobs.values()):
                    redact.refuse_secrets(part, secrets=secrets, name=f"the recording of {question.title}")
            except SecretError as error:
                self._note("withheld", question, detail=error.message)
                # Without its traceback: the frames below hold the secrets themselves.
                self._owed.append(error.with_traceback(None))
                return
            self.outbox.accept(clean)
            self._note("recorded", question)

    def refused(self, recording: Recording, message: str) -> CallRefused:
        with self._lock:
            if recording in self._session[recording.question.key]:
                self._session[recording.question.key].remove(recording)
            self._note("refused", recording.question, detail=message)
            error = CallRefused(recording.question.key, prompt_of(recording.question), message)
            self._owed.append(error)
            return error

    def secrets(self) -> dict[str, str]:
        """What must not be written: the value this process holds for each key variable."""
        return {name: value for name, value in self.credentials.items() if value}

    # -- inside -------------------------------------------------------------------------------

    def _play(self, question: Question, turn: int) -> Take:
        try:
            cassette = self._load(question)
        except CassetteError as error:
            # As a miss, not as itself: an application that catches Exception would go on without it.
            raise self._unusable(question, error) from error
        if cassette is None:
            raise self._miss(question, None)
        if len(cassette.takes) == 1:
            take = cassette.takes[0]  # a fact: it answers every time
        elif turn < len(cassette.takes):
            take = cassette.takes[turn]
        else:
            raise self._miss(question, (len(cassette.takes), turn + 1))
        self._note("played", question)
        return take

    def _play_or_record(self, question: Question, turn: int) -> Take | Recording:
        kept = self._kept(question) if self.missing_only else None
        if kept and len(kept.takes) == 1:
            return self._play(question, turn)
        session = self._session[question.key]
        if kept and not session:
            # A sequence is gone on with, not begun anew: what it has stays in front.
            session += [Recording(self, question, OUTSIDE, take) for take in kept.takes]
        recording = Recording(self, question, self.test)
        if turn < len(session) and (take := session[turn].take) is not None:
            if not (isinstance(take, Answer) and take.partial):
                self._note("played", question)
                return take  # another test has paid for it in this session
            session[turn] = recording  # that test stopped reading; this one may want the rest
        else:
            session.append(recording)
        return recording

    def _kept(self, question: Question) -> Cassette | None:
        try:
            return self._load(question)
        except CassetteError:
            return None  # what cannot be read is missing

    def _load(self, question: Question) -> Cassette | None:
        if question.key not in self._loaded:
            self._loaded[question.key] = self.store.load(question.key)
        return self._loaded[question.key]

    def _miss(self, question: Question, exhausted: tuple[int, int] | None) -> Unanswered:
        message = miss.explain(
            question,
            self.store.all(),
            command=self.command_for(self.test),
            folder=os.path.relpath(self.store.folder, self.settings.root),
            exhausted=exhausted,
        )
        return self._missed(question, message)

    def _unusable(self, question: Question, error: CassetteError) -> Unanswered:
        command = self.command_for(self.test)
        return self._missed(question, f"no recording for {question.title}: {error}\n  record it    {command}")

    def _missed(self, question: Question, message: str) -> Unanswered:
        message = redact.hidden(message, self.secrets())
        self._note("missed", question, detail=message)
        error = CassetteMiss(question.key, prompt_of(question), message)
        self._owed.append(error)
        return error

    def command_for(self, *tests: str) -> str:
        """The command that records what these tests ask."""
        # Imported here: only a miss needs it.
        import shlex

        return f"{self.command} -- {shlex.join(tests)}" if any(tests) else self.command

    def _foreign(self, grant: Grant, query: str, headers: Sequence[tuple[str, str]]) -> bool:
        """Whether a request carries another credential than the one this grant gives."""
        if grant.key_env is None:
            return False
        own = self.credentials.get(grant.key_env)
        sent = [value.removeprefix(grant.prefix) for name, value in headers if name.lower() == grant.header]
        if grant.query:
            sent += [value for name, value in parse_qsl(query) if name == grant.query]
        return own is not None and any(value != own for value in sent if value)

    def _note(self, kind: Kind, question: Question, detail: str = "") -> None:
        self.events.append(Event(kind=kind, key=question.key, title=question.title, test=self.test, detail=detail))
        if self.spill is not None and kind in ("missed", "refused", "withheld"):
            # At once, from whichever process: a forked child or a late thread reaches no report.
            line = json.dumps({"kind": kind, "key": question.key, "title": question.title, "test": self.test})
            with self.spill.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


_current: Deck | None = None


def current() -> Deck | None:
    """The deck of the session that runs in this process."""
    return _current


@contextmanager
def in_use(deck: Deck) -> Iterator[Deck]:
    """Makes `deck` the current one. Sessions nest: the inner one answers."""
    global _current  # noqa: PLW0603 -- one deck serves every thread of the process, so no context variable
    before, _current = _current, deck
    try:
        yield deck
    finally:
        _current = before
