"""Why there is no recording: the nearest one, and what is different, in the order people look for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any

from sealtape.cassette.model import Cassette, Question
from sealtape.cassette.reading import PROMPT_FIELDS, model_of, prompt_of

CONTEXT = 32  # characters shown on either side of what changed
LIMIT = 160  # characters of a value shown at all
CANDIDATES = 40  # recordings compared closely


@dataclass(frozen=True)
class Difference:
    """One place where what was asked is not what was recorded. `None` stands for absent."""

    path: str
    recorded: str | None
    asked: str | None


def explain(
    question: Question,
    recorded: Iterable[Cassette],
    *,
    command: str,
    folder: str = "cassettes",
    exhausted: tuple[int, int] | None = None,
) -> str:
    """The message of a miss.

    `exhausted`: the question is recorded, but it was asked once more (recorded n times, asked m
    times). `command` records what is missing. `folder` is where the recordings lie.
    """
    lines = [f"no recording for {question.title}", f"  key          {question.key}"]
    if exhausted:
        lines[0] = f"recorded {exhausted[0]}×, asked {exhausted[1]}×: {question.title}"
    elif nearest := find_nearest(question, recorded):
        lines.append(
            f"  nearest      {folder}/{nearest.key}.json, recorded {nearest.recorded_at or 'at an unknown time'}"
        )
        lines += _comparison(question, nearest)
    else:
        lines.append("  nearest      none: nothing like it is recorded")
        if prompt := prompt_of(question):
            lines.append(f"  prompt       {_cut(json.dumps(prompt, ensure_ascii=False))}")
    lines.append(f"  record it    {command}")
    return "\n".join(lines)


def find_nearest(question: Question, recorded: Iterable[Cassette]) -> Cassette | None:
    """The recording most like the question, or None where none is alike."""
    prompt = prompt_of(question)
    words = set(prompt.split())
    ranked = []
    for cassette in recorded:
        other = cassette.question
        if other is None or other.form != question.form:
            continue
        place = question.data.get("url") == other.data.get("url")
        shared = words.intersection(prompt_of(other).split())
        ranked.append((place + len(shared) / (len(words) or 1), cassette.key, cassette))
    ranked.sort(key=lambda entry: entry[:2], reverse=True)
    best, found = 0.0, None
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(prompt)
    for score, _, cassette in ranked[:CANDIDATES]:
        assert cassette.question is not None
        matcher.set_seq1(prompt_of(cassette.question))
        like = matcher.quick_ratio()
        total = like + (score >= 1) - len(differences(cassette.question, question)) / 100
        alike = bool(prompt) and like > 0.5  # noqa: PLR2004
        if total > best and (alike or cassette.question.data.get("url") == question.data.get("url")):
            best, found = total, cassette
    return found


def differences(recorded: Question, asked: Question) -> list[Difference]:
    """All differing leaves, by path: the body's fields by their own names, the rest as `/query/…`."""
    found = list(_walk("", _flat(recorded), _flat(asked)))
    return sorted(found, key=lambda difference: _rank(difference.path))


def _comparison(question: Question, nearest: Cassette) -> Iterator[str]:
    assert nearest.question is not None
    found = differences(nearest.question, question)
    prompt = [d for d in found if _rank(d.path) == 0]
    asks_a_model = bool(prompt_of(question) or model_of(question))
    if not prompt and asks_a_model:
        yield "  prompt       same"
    for difference in prompt[:3]:
        yield f"  prompt       at {difference.path}"
        yield from _before_after(difference)
    if len(prompt) > 3:  # noqa: PLR2004
        yield f"               and {len(prompt) - 3} more places"
    for label, path, value in (
        ("model", "/model", model_of(question)),
        ("temperature", "/temperature", question.subject.get("temperature")),
    ):
        change = next((d for d in found if d.path == path), None)
        if change:
            yield f"  {label:<12} {change.recorded or 'not given'} → {change.asked or 'not given'}"
        elif asks_a_model:
            yield f"  {label:<12} " + (
                "same, not given" if value is None else f"same, {json.dumps(value, ensure_ascii=False)}"
            )
    for difference in [d for d in found if _rank(d.path) == 3]:  # noqa: PLR2004
        short = len(difference.recorded or "") + len(difference.asked or "") < 70  # noqa: PLR2004
        if short:
            yield f"  {difference.path:<12} {difference.recorded or 'not given'} → {difference.asked or 'not given'}"
        else:
            yield f"  {difference.path}"
            yield from _before_after(difference)


def _before_after(difference: Difference) -> Iterator[str]:
    before, after = _around(difference.recorded, difference.asked)
    yield f"    recorded   {before}"
    yield f"    asked      {after}"


def _around(recorded: str | None, asked: str | None) -> tuple[str, str]:
    """Both texts, cut to what differs and a little on either side."""
    if recorded is None or asked is None:
        return _cut(recorded or "not given"), _cut(asked or "not given")
    # Not difflib: it takes minutes for a prompt of some pages.
    start = _shared(recorded, asked)
    end = _shared(recorded[start:][::-1], asked[start:][::-1])
    return _window(recorded, start, len(recorded) - end), _window(asked, start, len(asked) - end)


def _shared(one: str, two: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


def _window(text: str, start: int, end: int) -> str:
    low, high = max(0, start - CONTEXT), min(len(text), end + CONTEXT)
    cut = _cut(text[low:high])
    return ("…" if low else "") + cut + ("…" if high < len(text) else "")


def _cut(text: str) -> str:
    return text if len(text) <= LIMIT else f"{text[:LIMIT]}… ({len(text)} characters)"


def _flat(question: Question) -> dict[str, Any]:
    """The question with the body's fields at the top, where people think of them."""
    if question.form == "call":
        return dict(question.data)
    rest = {name: value for name, value in question.data.items() if name != "body"}
    body = question.data.get("body")
    return {**rest, **body} if isinstance(body, dict) else {**rest, "body": body}


def _rank(path: str) -> int:
    top = path.split("/")[1]
    if top in PROMPT_FIELDS:
        return 0
    return {"model": 1, "temperature": 2}.get(top, 3)


def _walk(path: str, recorded: Any, asked: Any) -> Iterator[Difference]:
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in sorted({*recorded, *asked}):
            yield from _walk_item(
                f"{path}/{name}", name in recorded, name in asked, recorded.get(name), asked.get(name)
            )
    elif isinstance(recorded, list) and isinstance(asked, list):
        for i in range(max(len(recorded), len(asked))):
            here, there = i < len(recorded), i < len(asked)
            yield from _walk_item(
                f"{path}/{i}", here, there, recorded[i] if here else None, asked[i] if there else None
            )
    elif type(recorded) is not type(asked) or recorded != asked:
        yield Difference(path, _shown(recorded), _shown(asked))


def _walk_item(path: str, here: bool, there: bool, recorded: Any, asked: Any) -> Iterator[Difference]:  # noqa: FBT001
    if here and there:
        yield from _walk(path, recorded, asked)
    else:
        yield Difference(path, _shown(recorded) if here else None, _shown(asked) if there else None)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
