"""How many tokens an answer says it cost, read in passing."""

from __future__ import annotations

import re

# Providers put the usage at the end of an answer, or (Anthropic's input tokens) at its beginning.
KEPT = 64 * 1024
_COUNTS = re.compile(
    rb'"(total_tokens|totalTokenCount|prompt_tokens|completion_tokens|input_tokens|output_tokens)"\s*:\s*(\d+)'
)


class TokenCount:
    """Keeps the two ends of a body, and finds the provider's own count in them."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        room = KEPT - len(self._head)
        self._head += chunk[:room]
        self._tail = (self._tail + chunk[max(0, room) :])[-KEPT:]

    def total(self) -> int | None:
        """The tokens of prompt and answer together, None where the answer names none."""
        # Streams count upwards: the last figure of each name is the one that holds.
        counts = {name: int(figure) for name, figure in _COUNTS.findall(self._head + self._tail)}
        if not counts:
            return None
        for name in (b"total_tokens", b"totalTokenCount"):
            if name in counts:
                return counts[name]
        return sum(counts.values())
