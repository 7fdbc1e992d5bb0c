"""A session: seams in place, a deck that answers. The pytest plugin runs one; any program can."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sealtape import config
from sealtape.cassette import deck as decks
from sealtape.cassette.deck import Deck
from sealtape.cassette.store import Store
from sealtape.config import Mode, Settings
from sealtape.guest import door as doors
from sealtape.guest import seams
from sealtape.guest.door import Door

# Beside the report: what stayed unanswered, one line each. A run with such a line is not green.
OWED = "owed.jsonl"


@contextmanager
def session(mode: str | None = None, cassettes: str | Path | None = None, **settings: Any) -> Iterator[Deck]:
    """Answers model calls from recordings, in any Python program.

    `mode` is `replay`, `record` or `off`, `cassettes` the folder; further `settings` are the
    keys of `[tool.sealtape]`. What is not given comes from the environment, then from
    `pyproject.toml`. Raises `ConfigError` on entry; inside, a missing recording is `CassetteMiss`.
    """
    given = {"cassettes": str(cassettes)} if cassettes is not None else {}
    with running(config.load(Path.cwd(), mode=mode, overrides={**settings, **given})) as deck:
        yield deck


@contextmanager
def running(settings: Settings) -> Iterator[Deck]:
    """The session of frozen settings."""
    link = settings.guest
    with ExitStack() as stack:
        outbox = None
        if settings.mode is Mode.RECORD:
            # Recordings wait outside `cassettes` until it is known that they are good.
            waiting = link.outbox if link and link.outbox else Path(stack.enter_context(tempfile.TemporaryDirectory()))
            outbox = Store(waiting)
        deck = Deck(
            settings,
            store=Store(settings.cassettes),
            outbox=outbox,
            credentials=config.credentials(settings),
            missing_only=bool(link and link.missing_only),
            command=record_command(settings.root),
            spill=link.report.with_name(OWED) if link else None,
        )
        door = Door(socket=link.door, token=link.token) if link and link.door else None
        stack.enter_context(doors.in_use(door))
        stack.enter_context(decks.in_use(deck))
        seams.place()
        try:
            yield deck
        finally:
            if link is None:  # also when the program ends in an error: what was asked is paid for
                keep(deck, deck.outbox.keys())


def keep(deck: Deck, keys: list[str]) -> None:
    """Moves recordings of a session without a broker into `cassettes`."""
    if deck.mode is not Mode.RECORD or deck.outbox is deck.store:
        return
    for key in keys:
        cassette = deck.outbox.load(key)
        if cassette is not None:
            deck.store.accept(cassette)
            deck.outbox.path(key).unlink()


def record_command(root: Path) -> str:
    """What a user of this project types to record."""
    return "nox -s record" if (root / "noxfile.py").is_file() else "sealtape record"
