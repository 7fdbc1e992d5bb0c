"""The folder of cassettes: found by key, written atomically, never half."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from sealtape.cassette import codec
from sealtape.cassette.model import Cassette
from sealtape.cassette.reading import essence
from sealtape.errors import CassetteError

Accepted = Literal["new", "updated", "unchanged"]

# More than any reviewable recording needs; a file above it is no cassette.
MAX_BYTES = 64 * 1024 * 1024


class Store:
    """The cassettes in `folder`, `<key>.json` each, with large bodies in `blobs/<sha256>`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def keys(self) -> list[str]:
        """The keys of all cassettes in the folder, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.json")) if self.folder.is_dir() else []

    def load(self, key: str) -> Cassette | None:
        """The cassette of a key, or None. Raises `CassetteError` for a file that is not what it says."""
        path = self.path(key)
        try:
            if path.stat().st_size > MAX_BYTES:
                raise CassetteError(f"{path} is larger than {MAX_BYTES} bytes; no cassette is")
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CassetteError(f"{path} cannot be read: {error.strerror}") from error
        cassette = codec.loads(data, name=str(path), blob=self._blob)
        if cassette.key != key:
            raise CassetteError(
                f"{path} holds the key {cassette.key}", tip=f"rename it to {cassette.key}.json, or record again"
            )
        return cassette

    def all(self) -> Iterator[Cassette]:
        """Every readable cassette. Unreadable ones are passed over: they are reported where they are asked for."""
        for key in self.keys():
            try:
                cassette = self.load(key)
            except CassetteError:
                continue
            if cassette:
                yield cassette

    def accept(self, cassette: Cassette) -> Accepted:
        """Writes a cassette, unless the one that is there gives the same answers.

        Ids, times and counts that a provider mints for each request do not make an answer
        another one; such a file stays byte for byte as it was.
        """
        try:
            old = self.load(cassette.key)
        except CassetteError:
            old = None  # what cannot be read is replaced
        if old and [essence(take) for take in old.takes] == [essence(take) for take in cassette.takes]:
            return "unchanged"
        existed = self.path(cassette.key).exists()
        data, blobs = codec.dumps(cassette)
        for sha, body in blobs.items():
            target = self.folder / "blobs" / sha
            if not target.exists():
                write_atomically(target, body)
        write_atomically(self.path(cassette.key), data)
        return "updated" if existed else "new"

    def _blob(self, sha: str) -> bytes:
        path = self.folder / "blobs" / sha
        try:
            return path.read_bytes()
        except OSError as error:
            raise CassetteError(
                f"{path} is missing: a cassette keeps a body there", tip="restore it, or record again"
            ) from error


def write_atomically(target: Path, data: bytes) -> None:
    """Writes a file whole or not at all: to a temporary file beside it, then into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: it makes private files, and a recording is shared like any other file of the project.
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
