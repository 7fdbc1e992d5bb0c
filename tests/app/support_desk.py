"""The application under test: a small assistant for support tickets, written as applications are.

It knows nothing of sealtape but for `headline`, which uses `sealtape.call`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import openai
from openai.types.chat import ChatCompletionMessageParam

import sealtape

MODEL = "gemma-3-270m"
BASE_URL = "http://127.0.0.1:8765/v1"
FALLBACK = "Thank you for your message. A colleague will answer you shortly."

_CATEGORIES = "Category of each ticket, one of: billing, account, bug, other."
_CATEGORY_SHOTS = (
    ("My invoice shows the wrong amount.", "billing"),
    ("The app crashes when I open a file.", "bug"),
    ("Do you ship to Norway?", "other"),
    ("I cannot log in since yesterday.", "account"),
    ("You charged my card for a plan I cancelled.", "billing"),
    ("Saving a large file freezes the program.", "bug"),
    ("Please delete my account.", "account"),
    ("What are your opening hours?", "other"),
)
_FACTS = "Give the facts of each ticket as JSON."
_FACTS_SHOTS = (
    ("Order 4711 arrived broken, I am furious!", '{"order": 4711, "problem": "broken", "urgent": true}'),
    ("No hurry: order 52 has the wrong colour.", '{"order": 52, "problem": "wrong colour", "urgent": false}'),
)
_REPLIES = "Answer support tickets politely in one sentence."
_REPLY_SHOTS = (
    ("The app crashes.", "Sorry about the crash; please update to the latest version and try again."),
    ("I was charged twice.", "Sorry about that; we have refunded the second charge."),
)


@dataclass(frozen=True)
class Facts:
    """What a ticket is about. `complete` is False where the model's answer could not be read."""

    order: int | None = None
    problem: str = "unknown"
    urgent: bool = True
    complete: bool = False


class Desk:
    """The assistant. It retries as the SDK does, and falls back where the model fails it."""

    def __init__(self, *, timeout: float = 60.0, max_retries: int = 5, base_url: str = BASE_URL) -> None:
        key = os.environ.get("OPENAI_API_KEY", "not-needed-here")
        self._client = openai.OpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=max_retries)
        self._async = openai.AsyncOpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=max_retries)

    def category(self, ticket: str) -> str:
        """One of the categories, "other" where the model says anything else."""
        answer = self._client.chat.completions.create(
            model=MODEL, messages=_shots(_CATEGORIES, _CATEGORY_SHOTS, ticket), temperature=0, max_tokens=4, seed=1
        )
        word = (answer.choices[0].message.content or "").split()[:1]
        return word[0] if word and word[0] in ("billing", "account", "bug") else "other"

    def facts(self, ticket: str, *, limit: int = 40) -> Facts:
        """The facts as the model sees them. Models add text after the JSON, or stop in the middle of it."""
        answer = self._client.chat.completions.create(
            model=MODEL, messages=_shots(_FACTS, _FACTS_SHOTS, ticket), temperature=0, max_tokens=limit, seed=1
        )
        text = (answer.choices[0].message.content or "").strip()
        try:
            document, _ = json.JSONDecoder().raw_decode(text)
            return Facts(
                order=int(document["order"]),
                problem=str(document["problem"]),
                urgent=bool(document["urgent"]),
                complete=True,
            )
        except (ValueError, KeyError, TypeError):
            return Facts()

    def reply(self, ticket: str) -> Iterator[str]:
        """A reply, piece by piece, as the model writes it."""
        stream = self._client.chat.completions.create(
            model=MODEL,
            messages=_shots(_REPLIES, _REPLY_SHOTS, ticket),
            temperature=0,
            max_tokens=24,
            seed=1,
            stream=True,
        )
        for event in stream:
            if event.choices and (piece := event.choices[0].delta.content):
                yield piece

    async def reply_async(self, ticket: str) -> AsyncIterator[str]:
        """The same, for a web server's event loop."""
        stream = await self._async.chat.completions.create(
            model=MODEL,
            messages=_shots(_REPLIES, _REPLY_SHOTS, ticket),
            temperature=0,
            max_tokens=24,
            seed=1,
            stream=True,
        )
        async for event in stream:
            if event.choices and (piece := event.choices[0].delta.content):
                yield piece

    async def aclose(self) -> None:
        """Closes the connections of `reply_async`, while its event loop still runs."""
        await self._async.close()

    def reply_or_fallback(self, ticket: str) -> str:
        """A reply whatever happens: the customer never sees an error."""
        try:
            return "".join(self.reply(ticket))
        except Exception:  # noqa: BLE001 -- the point of this method
            return FALLBACK


def headline(ticket: str) -> str:
    """The ticket in a few words."""
    prompt = f"Ticket: I was charged twice.\nHeadline: Charged twice\n\nTicket: {ticket}\nHeadline:"
    return sealtape.call(MODEL, prompt, 0.0, max_tokens=8).strip()


def _shots(task: str, shots: tuple[tuple[str, str], ...], ticket: str) -> list[ChatCompletionMessageParam]:
    messages: list[ChatCompletionMessageParam] = []
    for number, (asked, answered) in enumerate(shots):
        messages.append({"role": "user", "content": f"{task}\n\n{asked}" if number == 0 else asked})
        messages.append({"role": "assistant", "content": answered})
    return [*messages, {"role": "user", "content": ticket}]
