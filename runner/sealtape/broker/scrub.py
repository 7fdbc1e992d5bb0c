"""Real keys taken out of what comes back, in whatever form and however it is cut into chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from sealtape.cassette.redact import forms

# Valid in a JSON string, a header, a URL and base64 alike, so that what held a key stays readable.
FILLER = b"x"


def patterns_of(secret: str) -> frozenset[bytes]:
    """Every way of writing a secret that is looked for: `redact.forms`, and their variants on the wire."""
    found = set(forms(secret))
    # The other sets of characters that are left as they are: Python's quote, and encodeURI.
    found |= {quote(secret, safe=safe).encode() for safe in ("/", ";,/?:@&=+$-_.!~*'()#")}
    found |= {re.sub(rb"%[0-9A-F]{2}", lambda escape: escape[0].lower(), form) for form in found}
    # Some servers escape the slash in JSON.
    found.add(json.dumps(secret)[1:-1].replace("/", "\\/").encode())
    return frozenset(found)


def scrub(data: bytes, patterns: Iterable[bytes]) -> bytes:
    """Data that stands alone, such as a header, with its secrets replaced by as many filler bytes."""
    clean = bytearray(data)
    for start, end in _occurrences(data, patterns):
        clean[start:end] = FILLER * (end - start)
    return bytes(clean)


class Scrubber:
    """The same for a stream, cut anywhere. Its length stays, so a content length stays true.

    Only a tail that may be the beginning of a secret is held back, until the next chunk says
    whether it is: a stream of events passes unbuffered.
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._patterns = tuple(patterns)
        self._beginnings = frozenset(p[:end] for p in self._patterns for end in range(1, len(p)))
        self._reach = max(map(len, self._beginnings), default=0)
        self._held = b""
        # How many of the held bytes belong to a secret that began before them: overlapping
        # secrets are each replaced as a whole.
        self._covered = 0

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now that `chunk` has arrived."""
        data = self._held + chunk
        cut = self._first_beginning(data)
        clean = bytearray(data)
        covered = self._covered
        for start, end in _occurrences(data, self._patterns):
            if start < cut:
                clean[start:end] = FILLER * (end - start)
                covered = max(covered, end)
        clean[: self._covered] = FILLER * self._covered
        self._held = data[cut:]
        self._covered = max(0, covered - cut)
        return bytes(clean[:cut])

    def end(self) -> bytes:
        """What was held back, once nothing more comes."""
        rest = FILLER * self._covered + scrub(self._held, self._patterns)[self._covered :]
        self._held, self._covered = b"", 0
        return rest

    def _first_beginning(self, data: bytes) -> int:
        """Where the earliest secret that may go on in the next chunk begins; the length if none does."""
        candidates = range(max(0, len(data) - self._reach), len(data))
        return next((start for start in candidates if data[start:] in self._beginnings), len(data))


def _occurrences(data: bytes, patterns: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    for pattern in patterns:
        start = data.find(pattern)
        while start >= 0:
            yield start, start + len(pattern)
            start = data.find(pattern, start + 1)
