"""The host's inspection of what a record session wrote, before any of it enters `cassettes/`.

The outbox was written by code that is not trusted: it may hold links, pipes, other people's
files and forged recordings. What is taken in is not the file but what was understood of it,
written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeGuard

from sealtape.cassette import codec, redact
from sealtape.cassette.model import Answer, Cassette, Take
from sealtape.cassette.store import MAX_BYTES, Store
from sealtape.config import Redaction
from sealtape.errors import CassetteError, SecretError

# What the guest's ledger writes beside the recordings: a line for each test.
JOURNAL = "journal.jsonl"

_NAME = re.compile(r"([0-9a-f]{16})\.json")
_SERVER_ERROR = 500


@dataclass(kw_only=True)
class IntakeReport:
    """What became of a session's recordings: files, and why those stayed out that did.

    `kept_out` is what a record session leaves behind in the normal course of things; `refused`
    is what ought not to have been there, and ends the run with 77.
    """

    cassettes: Path
    new: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    kept_out: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def summary(self, root: Path) -> list[str]:
        """The report in lines, with the folder as it is called seen from `root`."""
        folder = self.cassettes
        if folder.is_relative_to(root):
            folder = folder.relative_to(root)
        counts = f"{len(self.new)} new, {len(self.updated)} updated, {len(self.unchanged)} unchanged"
        return [
            f"recordings in {folder}/: {counts}",
            *(f"  {what}: {folder / name}" for what in ("new", "updated") for name in getattr(self, what)),
            *(f"  kept out: {name}, {reason}" for name, reason in self.kept_out),
            *(f"  refused: {name}, {reason}" for name, reason in self.refused),
        ]


@dataclass(frozen=True)
class _Fate:
    """What the journal says of a recording: the tests that used it and failed, and whether any needs it."""

    failed: tuple[str, ...] = ()
    needed: bool = False


def take_in(
    outbox: Path,
    cassettes: Path,
    *,
    secrets: Mapping[str, str],
    rules: Iterable[Redaction] = (),
    keep_failures: bool = False,
) -> IntakeReport:
    """Moves what is good from `outbox` to `cassettes`.

    `secrets`: what no file may carry, by name. `rules`: the project's own redactions. A recording
    stays out if all tests that used it failed, unless the broker stopped the test: then the
    recordings until there are good, and paid for. Answers 429 and 5xx stay out unless
    `keep_failures`.
    """
    report = IntakeReport(cassettes=cassettes)
    store = Store(cassettes)
    with _folder(outbox) as folder:
        fates = _fates(folder)
        for name in _names(folder):
            if name.endswith(".part"):
                report.kept_out.append((name, "it was not written to its end"))
                continue
            try:
                cassette = _understood(folder, name, secrets, tuple(rules))
            except (_Suspicious, CassetteError, SecretError) as error:
                report.refused.append((printable(name), printable(str(error.args[0]))))
                continue
            fate = fates.get(cassette.key, _Fate(needed=True))
            if not fate.needed:
                report.kept_out.append((name, f"its test failed: {printable(fate.failed[0])}"))
                continue
            wanted = cassette.takes if keep_failures else tuple(take for take in cassette.takes if not _unwanted(take))
            if len(wanted) < len(cassette.takes):
                statuses = ", ".join(str(take.status) for take in cassette.takes if _unwanted(take))
                why = f"answered {statuses}, which replay will leave out; --keep-failures records it"
                report.kept_out.append((name, why))
            if wanted:
                getattr(report, store.accept(replace(cassette, takes=wanted))).append(name)
    return report


class _Suspicious(Exception):  # noqa: N818 -- the reason, as the end of a sentence
    """Why a file is not even opened, or not believed."""


def _understood(folder: int, name: str, secrets: Mapping[str, str], rules: tuple[Redaction, ...]) -> Cassette:
    """A recording as it would be written. Raises `_Suspicious`, `CassetteError` or `SecretError`."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise _Suspicious("no recording has such a name")
    data = _contents(folder, name)
    redact.refuse_secrets(data, secrets=secrets, name=name)
    try:
        cassette = codec.loads(data, name=name, blob=partial(_blob, folder))
    except RecursionError as error:
        raise _Suspicious("it is nested too deeply") from error
    if cassette.key != match[1]:
        raise _Suspicious(f"it holds the key {cassette.key}")
    cassette = redact.redacted(cassette, secrets={}, rules=rules)
    # Looked through once more in the form it will have: JSON escapes can hide anything.
    text, blobs = codec.dumps(cassette)
    for part in (text, *blobs.values()):
        redact.refuse_secrets(part, secrets=secrets, name=name)
    return cassette


def _blob(folder: int, sha: str) -> bytes:
    try:
        blobs = os.open("blobs", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        raise _Suspicious(f"its blob {sha} is missing") from error
    try:
        body = _contents(blobs, sha)
    except FileNotFoundError as error:
        raise _Suspicious(f"its blob {sha} is missing") from error
    finally:
        os.close(blobs)
    if hashlib.sha256(body).hexdigest() != sha:
        raise _Suspicious(f"its blob {sha} holds something else")
    return body


def _contents(folder: int, name: str) -> bytes:
    """A regular file's bytes. Anything else is not opened: that alone may have effects, or never return."""
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _Suspicious("it is not a regular file")
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise _Suspicious(f"it cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        # Once more, of what was opened: the name may have changed hands in between.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _Suspicious("it is linked from elsewhere")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _Suspicious(f"it is larger than {MAX_BYTES // 2**20} MiB")
    return data


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name not in ("blobs", JOURNAL))


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fates(folder: int) -> dict[str, _Fate]:
    """What the journal says, per key. A recording that it does not mention, of a run cut short, is not there."""
    try:
        lines = _contents(folder, JOURNAL).splitlines()
    except (FileNotFoundError, _Suspicious):
        return {}
    fates: dict[str, _Fate] = {}
    for line in lines:
        entry = _entry(line)
        for key in entry.get("keys", ()):
            fate = fates.get(key, _Fate())
            if entry["outcome"] == "failed" and not entry["refused"]:
                fates[key] = replace(fate, failed=(*fate.failed, entry["test"]))
            else:
                fates[key] = replace(fate, needed=True)
    return fates


def _entry(line: bytes) -> dict[str, Any]:
    """A line of the journal, or nothing if it is none: the guest wrote it, perhaps not to its end."""
    try:
        entry = json.loads(line)
        return {
            "test": str(entry["test"]),
            "outcome": entry["outcome"],
            "keys": [str(key) for key in entry["keys"]],
            "refused": bool(entry["refused"]),
        }
    except (ValueError, TypeError, KeyError):
        return {}


def printable(text: str) -> str:
    """Text of the guest's as it can be shown: it may be made to take over a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _unwanted(take: Take) -> TypeGuard[Answer]:
    return isinstance(take, Answer) and (take.status == HTTPStatus.TOO_MANY_REQUESTS or take.status >= _SERVER_ERROR)
