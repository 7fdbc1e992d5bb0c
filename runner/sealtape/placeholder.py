"""What the guest finds in a key's variable instead of the key."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from typing import NamedTuple

MARK = "sealtape"


class _Shape(NamedTuple):
    prefix: str
    length: int


# As each provider's keys look, so that a client which checks the shape accepts a placeholder.
_SHAPES: Mapping[str, _Shape] = {
    "ANTHROPIC_API_KEY": _Shape("sk-ant-api03-", 108),
    "DEEPSEEK_API_KEY": _Shape("sk-", 35),
    "GEMINI_API_KEY": _Shape("AIza", 39),
    "GOOGLE_API_KEY": _Shape("AIza", 39),
    "GROQ_API_KEY": _Shape("gsk_", 56),
    "OPENAI_API_KEY": _Shape("sk-", 51),
    "OPENROUTER_API_KEY": _Shape("sk-or-v1-", 73),
    "XAI_API_KEY": _Shape("xai-", 84),
}
_ANY = _Shape("", 40)


def placeholder_for(variable: str, *, fresh: bool) -> str:
    """What stands in `variable` in the guest: shaped like the provider's keys, with "sealtape" in it.

    In a record session it is random (`fresh`), so that only this run's guest can know it; in
    replay it is always the same.
    """
    prefix, length = _SHAPES.get(variable, _ANY)
    room = length - len(prefix) - len(MARK)
    letters = string.ascii_letters + string.digits
    return prefix + MARK + "".join(secrets.choice(letters) if fresh else "0" for _ in range(room))
