from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sealtape.cassette import miss
from sealtape.cassette.deck import Deck
from sealtape.cassette.key import call_question, http_question
from sealtape.cassette.model import Cassette, Question, Said
from sealtape.cassette.store import Store
from sealtape.config import QuestionRules, Settings, parse
from sealtape.errors import CassetteMiss

URL = "https://api.example.com/v1/chat/completions"
JSON = [("content-type", "application/json")]


def asked(body: Any = None, url: str = URL, headers: Sequence[tuple[str, str]] = (), method: str = "POST") -> Question:
    raw = b"" if body is None else json.dumps(body).encode()
    return http_question(method, url, [*JSON, *headers], raw, rules=QuestionRules())


def chat(prompt: str, *, url: str = URL, **more: Any) -> Question:
    return asked({"model": "gpt", "messages": [{"role": "user", "content": prompt}], **more}, url)


def recorded(question: Question) -> Cassette:
    return Cassette(key=question.key, question=question, takes=(Said(text="x"),), recorded_at="2026-01-01T00:00:00Z")


def explained(question: Question, *others: Question) -> list[str]:
    return miss.explain(question, [recorded(other) for other in others], command="sealtape record").splitlines()


def test_the_message_compares_prompt_model_temperature_and_then_the_rest() -> None:
    old = chat("Is the sky blue?", temperature=0.5, seed=1)
    new = asked(
        {"model": "gpt-2", "messages": [{"role": "user", "content": "Is the sky grey?"}], "top_p": 1, "seed": 2}
    )
    assert explained(new, old) == [
        f"no recording for POST {URL}",
        f"  key          {new.key}",
        f"  nearest      cassettes/{old.key}.json, recorded 2026-01-01T00:00:00Z",
        "  prompt       at /messages/0/content",
        '    recorded   "Is the sky blue?"',
        '    asked      "Is the sky grey?"',
        '  model        "gpt" → "gpt-2"',
        "  temperature  0.5 → not given",
        "  /seed        1 → 2",
        "  /top_p       not given → 1",
        "  record it    sealtape record",
    ]


def test_what_is_the_same_is_said_to_be() -> None:
    lines = explained(chat("Hello", seed=2), chat("Hello", seed=1))
    assert lines[3:7] == [
        "  prompt       same",
        '  model        same, "gpt"',
        "  temperature  same, not given",
        "  /seed        1 → 2",
    ]
    assert "  temperature  same, 0.5" in explained(
        chat("Hello", temperature=0.5, seed=2), chat("Hello", temperature=0.5, seed=1)
    )


def test_a_long_prompt_is_cut_to_what_changed() -> None:
    before, after = "start " * 2000, " and so on" * 2000
    lines = explained(chat(f"{before}summer{after}"), chat(f"{before}winter{after}"))
    (old,) = [line for line in lines if line.startswith("    recorded")]
    (new,) = [line for line in lines if line.startswith("    asked")]
    assert "winter" in old
    assert "summer" in new
    assert max(map(len, lines)) < 200


def test_two_changes_are_shown_with_what_is_between_them() -> None:
    lines = explained(chat("one two three four five"), chat("one 2 three 4 five"))
    assert '    recorded   "one 2 three 4 five"' in lines
    assert '    asked      "one two three four five"' in lines


def test_text_that_was_added_or_repeated_is_shown() -> None:
    lines = explained(chat("aaaa"), chat("aa"))
    assert lines[4:6] == ['    recorded   "aa"', '    asked      "aaaa"']


def test_a_further_message_is_shown_as_a_place_that_was_not_there() -> None:
    question = asked(
        {"model": "gpt", "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "You?"}]}
    )
    lines = explained(question, chat("Hi"))
    assert lines[3:6] == [
        "  prompt       at /messages/1",
        "    recorded   not given",
        '    asked      {"role": "user", "content": "You?"}',
    ]


def test_more_than_three_places_are_counted() -> None:
    def talk(word: str) -> Question:
        return asked({"messages": [{"content": f"{word} {number}"} for number in range(5)]})

    assert "               and 2 more places" in explained(talk("say"), talk("do"))


def test_the_nearest_is_the_one_with_the_prompt_most_alike() -> None:
    right = chat("What is the capital of France, and how many people live there?")
    others = [chat(f"Write a poem of {number} lines about the sea.") for number in range(60)]
    asked_now = chat("What is the capital of Spain, and how many people live there?")
    found = miss.find_nearest(asked_now, [recorded(question) for question in (*others, right)])
    assert found is not None
    assert found.key == right.key


def test_of_two_with_the_same_prompt_the_one_with_fewer_differences_is_nearest() -> None:
    near, far = chat("Hello", seed=1), chat("Hello", seed=3, top_p=1, n=2)
    found = miss.find_nearest(chat("Hello", seed=2), [recorded(far), recorded(near)])
    assert found is not None
    assert found.key == near.key


def test_where_nothing_is_alike_the_prompt_is_shown() -> None:
    lines = explained(chat("Hello there"), call_question("m", "Hello there", 0.0, {}))
    assert lines[2:4] == ["  nearest      none: nothing like it is recorded", '  prompt       "Hello there"']


def test_a_request_without_a_prompt_is_compared_with_its_own_url_only() -> None:
    def get(url: str) -> Question:
        return asked(url=url, method="GET")

    other = get("https://elsewhere.example.com/weather?city=Rome")
    assert explained(get("https://api.example.com/weather?city=Oslo"), other)[2] == (
        "  nearest      none: nothing like it is recorded"
    )
    own = get("https://api.example.com/weather?city=Rome")
    lines = explained(get("https://api.example.com/weather?city=Oslo"), other, own)
    assert own.key in lines[2]
    assert '  /query/0/1   "Rome" → "Oslo"' in lines


def test_a_question_asked_too_often_says_how_often() -> None:
    text = miss.explain(chat("Hi"), [recorded(chat("Hi"))], command="sealtape record", exhausted=(2, 3))
    assert text.splitlines()[0] == f"recorded 2×, asked 3×: POST {URL}"
    assert "nearest" not in text


def test_a_megabyte_is_neither_shown_nor_waited_for() -> None:
    text = "lorem ipsum dolor sit amet " * 40_000
    lines = explained(chat(f"{text}!{text}"), chat(f"{text}?{text}"))
    assert max(map(len, lines)) < 250


def deck(tmp_path: Path, **table: Any) -> Deck:
    settings: Settings = parse(tmp_path, table)
    return Deck(settings, store=Store(settings.cassettes), credentials={"OPENAI_API_KEY": "sk-of-mine-123456"})


def missed(deck: Deck, question: Question, test: str = "") -> str:
    with deck.during(test), pytest.raises(CassetteMiss) as caught:
        deck.answer(question)
    return str(caught.value)


@pytest.mark.parametrize("test", ["tests/test_a.py::test_b[x y]", "tests/test_a.py::test_it's[$HOME]"])
def test_the_command_records_exactly_this_test_when_it_is_pasted(tmp_path: Path, test: str) -> None:
    last = missed(deck(tmp_path), chat("Hi"), test).splitlines()[-1]
    assert shlex.split(last.removeprefix("  record it")) == ["sealtape", "record", "--", test]


def test_outside_of_a_test_the_command_records_all(tmp_path: Path) -> None:
    assert missed(deck(tmp_path), chat("Hi")).endswith("  record it    sealtape record")


def test_the_nearest_is_named_where_it_lies(tmp_path: Path) -> None:
    moved = deck(tmp_path, cassettes="some/tapes")
    moved.store.accept(recorded(chat("Hello")))
    assert f"some/tapes/{chat('Hello').key}.json" in missed(moved, chat("Hallo"))


def test_no_credential_is_in_the_text(tmp_path: Path) -> None:
    key = "sk-of-mine-123456"
    question = deck(tmp_path).http_question(
        "POST",
        f"https://me:{key}@api.example.com/v1?key={key}&api_key={key}",
        [*JSON, ("Authorization", f"Bearer {key}"), ("Cookie", f"sid={key}"), ("X-Api-Key", key)],
        json.dumps({"prompt": f"my key is {key}"}).encode(),
    )
    text = missed(deck(tmp_path), question)
    assert "my key is" in text  # that there is a prompt in it at all
    assert key not in text
