from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealtape.cassette import deck as decks
from sealtape.cassette.deck import Deck, Recording
from sealtape.cassette.model import Answer, Failure, Question, Take
from sealtape.cassette.store import Store
from sealtape.config import Mode, parse
from sealtape.errors import CallRefused, CassetteMiss, SecretError

URL = "https://api.openai.com/v1/chat/completions"
JSON = [("content-type", "application/json")]
KEY = "sk-of-this-process-1234"


def make(tmp_path: Path, mode: str = "replay", *, missing_only: bool = False, **table: Any) -> Deck:
    settings = parse(tmp_path, {"grants": {"openai": {"preset": "openai"}}, **table})
    return Deck(
        replace(settings, mode=Mode(mode)),
        store=Store(settings.cassettes),
        credentials={"OPENAI_API_KEY": KEY},
        missing_only=missing_only,
    )


def ask(deck: Deck, prompt: str, *, key: str = KEY, url: str = URL) -> Question:
    headers = [*JSON, ("Authorization", f"Bearer {key}")]
    return deck.http_question("POST", url, headers, json.dumps({"model": "m", "prompt": prompt}).encode())


def answer(text: str) -> Answer:
    return Answer(status=200, headers=(("content-type", "text/plain"),), body=text.encode(), chunks=(len(text),))


def record(deck: Deck, prompt: str, text: str, test: str = "t") -> Take:
    """Asks as a seam does. What the provider would say is `text`."""
    with deck.during(test):
        asked = deck.answer(ask(deck, prompt))
        if isinstance(asked, Recording):
            asked.finish(answer(text))
            return answer(text)
        return asked


def play(deck: Deck, prompt: str) -> str:
    take = deck.answer(ask(deck, prompt))
    assert isinstance(take, Answer)
    return take.body.decode()


def kinds(deck: Deck) -> list[str]:
    return [event.kind for event in deck.events]


def test_a_fact_answers_every_time(tmp_path: Path) -> None:
    record(make(tmp_path, "record"), "Hi", "Hello")
    deck = make(tmp_path)
    assert [play(deck, "Hi") for _ in range(5)] == ["Hello"] * 5
    assert kinds(deck) == ["played"] * 5
    assert deck.settle() is None


def test_a_sequence_is_played_in_order_by_each_test_and_ends(tmp_path: Path) -> None:
    recording = make(tmp_path, "record")
    for text in ("one", "two"):
        record(recording, "Next?", text)
    deck = make(tmp_path)
    for test in ("test_a", "test_b"):
        with deck.during(test):
            assert [play(deck, "Next?"), play(deck, "Next?")] == ["one", "two"]
            with pytest.raises(CassetteMiss, match="recorded 2×, asked 3×") as caught:
                play(deck, "Next?")
            assert deck.settle() is caught.value
            assert deck.settle() is None


def test_different_questions_come_in_any_order(tmp_path: Path) -> None:
    recording = make(tmp_path, "record")
    for number in range(4):
        record(recording, f"q{number}", f"a{number}")
    deck = make(tmp_path)
    assert [play(deck, f"q{number}") for number in (2, 0, 3, 1, 0)] == ["a2", "a0", "a3", "a1", "a0"]


def test_a_miss_says_what_to_do_and_is_owed(tmp_path: Path) -> None:
    deck = make(tmp_path)
    with deck.during("tests/test_a.py::test_b"), pytest.raises(CassetteMiss) as caught:
        play(deck, "Hi")
    assert caught.value.key == ask(deck, "Hi").key
    assert caught.value.prompt == "Hi"
    assert "sealtape record -- tests/test_a.py::test_b" in str(caught.value)
    (event,) = deck.events
    assert (event.kind, event.test, event.title) == ("missed", "tests/test_a.py::test_b", f"POST {URL}")
    assert deck.settle() is caught.value


def test_a_recording_that_cannot_be_read_is_no_exception_that_an_application_catches(tmp_path: Path) -> None:
    record(make(tmp_path, "record"), "Hi", "Hello")
    deck = make(tmp_path)
    path = deck.store.path(ask(deck, "Hi").key)
    path.write_text("{")
    with pytest.raises(CassetteMiss) as caught:
        play(deck, "Hi")
    assert f"{path} is not valid JSON" in str(caught.value)
    assert kinds(deck) == ["missed"]
    assert deck.settle() is caught.value


def test_two_tests_with_the_same_question_pay_once(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    assert record(deck, "Hi", "Hello", "test_a") == record(deck, "Hi", "something else", "test_b") == answer("Hello")
    assert kinds(deck) == ["recorded", "played"]
    assert play(make(tmp_path), "Hi") == "Hello"


def test_asked_twice_and_answered_the_same_is_a_fact(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    record(deck, "Hi", "Hello")
    record(deck, "Hi", "Hello")
    replay = make(tmp_path)
    assert [play(replay, "Hi") for _ in range(3)] == ["Hello"] * 3


def test_the_next_test_of_a_record_session_gets_what_replay_will_give_it(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    for text in ("one", "two"):
        record(deck, "Next?", text, "test_a")
    assert [record(deck, "Next?", text, "test_b") for text in ("x", "y", "three")] == [
        answer("one"),
        answer("two"),
        answer("three"),
    ]
    replay = make(tmp_path)
    assert [play(replay, "Next?") for _ in range(3)] == ["one", "two", "three"]


def test_takes_stand_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    first, second = deck.answer(ask(deck, "Next?")), deck.answer(ask(deck, "Next?"))
    assert isinstance(first, Recording)
    assert isinstance(second, Recording)
    second.finish(answer("two"))
    first.finish(answer("one"))
    replay = make(tmp_path)
    assert [play(replay, "Next?"), play(replay, "Next?")] == ["one", "two"]


def test_a_recording_is_on_disk_before_the_next_one_begins(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    for number in range(3):
        record(deck, f"q{number}", "a")
        assert len(deck.store.keys()) == number + 1


def test_missing_only_asks_what_has_no_recording(tmp_path: Path) -> None:
    record(make(tmp_path, "record"), "old", "kept")
    deck = make(tmp_path, "record", missing_only=True)
    assert record(deck, "old", "paid again") == answer("kept")
    assert record(deck, "new", "paid") == answer("paid")
    assert kinds(deck) == ["played", "recorded"]


def test_missing_only_goes_on_where_a_sequence_ends(tmp_path: Path) -> None:
    recording = make(tmp_path, "record")
    for text in ("one", "two"):
        record(recording, "Next?", text)
    deck = make(tmp_path, "record", missing_only=True)
    assert [record(deck, "Next?", "three") for _ in range(3)] == [answer("one"), answer("two"), answer("three")]
    replay = make(tmp_path)
    assert [play(replay, "Next?") for _ in range(3)] == ["one", "two", "three"]


def test_another_credential_is_another_question_and_never_in_the_file(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    own, foreign = ask(deck, "Hi"), ask(deck, "Hi", key="sk-of-somebody-else")
    assert own.key != foreign.key
    assert foreign.key == ask(deck, "Hi", key="sk-of-a-third").key
    recording = deck.answer(foreign)
    assert isinstance(recording, Recording)
    recording.finish(Answer(status=401))
    text = deck.store.path(foreign.key).read_text()
    assert "somebody" not in text
    assert KEY not in text


def test_a_credential_for_a_host_without_a_grant_does_not_matter(tmp_path: Path) -> None:
    deck = make(tmp_path)
    url = "https://api.example.com/v1"
    assert ask(deck, "Hi", url=url).key == ask(deck, "Hi", url=url, key="other").key


@pytest.mark.parametrize(
    ("place", "route"),
    [
        (("https", "api.openai.com", None), "deck"),
        (("https", "API.OpenAI.com.", 443), "deck"),
        (("https", "unknown.example.com", None), "deck"),
        (("https", "traces.example.com", 443), "ignore"),
        (("https", "TRACES.example.com", None), "ignore"),
        (("http", "127.0.0.1", 5000), "pass"),
        (("http", "localhost", None), "pass"),
        (("http", "::1", 5000), "pass"),
        (("http", "[::1]", 5000), "pass"),
        (("http", "127.0.0.1", 8765), "deck"),
        (("http", "localhost.example.com", None), "deck"),
    ],
)
def test_routes(tmp_path: Path, place: tuple[str, str, int | None], route: str) -> None:
    grants = {"openai": {"preset": "openai"}, "local": {"hosts": ["http://127.0.0.1:8765"]}}
    deck = make(tmp_path, grants=grants, ignore_hosts=["traces.example.com"])
    assert deck.route(*place) == route
    assert make(tmp_path, "off").route(*place) == "pass"


def test_an_ignored_call_is_answered_and_noted_but_never_missed(tmp_path: Path) -> None:
    deck = make(tmp_path)
    assert deck.ignored("POST traces.example.com").status == 200
    assert kinds(deck) == ["ignored"]
    assert deck.settle() is None


def test_faults_stand_in_front_of_what_is_recorded(tmp_path: Path) -> None:
    recording = make(tmp_path, "record")
    for text in ("one", "two"):
        record(recording, "Next?", text)
    deck = make(tmp_path)
    faults = [Answer(status=429), Failure(kind="read_timeout")]
    with deck.during("t", faults):
        assert [deck.answer(ask(deck, "Next?")) for _ in faults] == faults
        assert [play(deck, "Next?"), play(deck, "Next?")] == ["one", "two"]
    with deck.during("u"):
        assert play(deck, "Next?") == "one"
    with deck.during("v", faults):
        pass
    assert play(deck, "Next?") == "one"  # what was not asked for does not reach another test


def test_fifty_threads_get_their_own_answers_in_both_modes(tmp_path: Path) -> None:
    def all_at_once(deck: Deck) -> dict[int, Any]:
        got: dict[int, Any] = {}
        ready = threading.Barrier(50)

        def one(number: int) -> None:
            question = ask(deck, f"q{number}")
            ready.wait(30)
            asked = deck.answer(question)
            if isinstance(asked, Recording):
                asked.begin(Answer(status=200, headers=(("content-type", "text/plain"),)))
                for letter in f"answer {number}":
                    asked.chunk(letter.encode())
                asked.end()
                asked = asked.take  # type: ignore[assignment]
            got[number] = asked

        threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return got

    recorded, played = all_at_once(make(tmp_path, "record")), all_at_once(make(tmp_path))
    assert recorded == played
    assert {number: take.body for number, take in played.items()} == {n: f"answer {n}".encode() for n in range(50)}


def begin(deck: Deck, prompt: str = "Hi") -> Recording:
    recording = deck.answer(ask(deck, prompt))
    assert isinstance(recording, Recording)
    return recording


def kept(deck: Deck, prompt: str = "Hi") -> Take:
    cassette = deck.store.load(ask(deck, prompt).key)
    assert cassette is not None
    return cassette.takes[-1]


def test_a_stream_is_kept_with_its_chunks(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    recording = begin(deck)
    recording.begin(Answer(status=200))
    for chunk in (b"a", b"bc", b"def"):
        recording.chunk(chunk)
    recording.end()
    recording.end(partial=True)  # closing after the end changes nothing
    recording.fail("read_error", "too late")
    assert kept(deck) == Answer(status=200, body=b"abcdef", chunks=(1, 2, 3))
    assert kinds(deck) == ["recorded"]


@pytest.mark.parametrize(
    ("last", "partial"), [(b"data: {}\n\n", True), (b"data: [DONE]\n\n", False), (b"data: [DONE]", False)]
)
def test_a_stream_that_is_closed_early_is_partial_unless_it_had_ended(
    tmp_path: Path, last: bytes, *, partial: bool
) -> None:
    deck = make(tmp_path, "record")
    recording = begin(deck)
    recording.begin(Answer(status=200))
    recording.chunk(last)
    recording.end(partial=True)
    take = kept(deck)
    assert isinstance(take, Answer)
    assert take.partial is partial


def test_failures_are_takes_with_what_had_come_before(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    begin(deck, "a").fail("connect_timeout", "slow")
    recording = begin(deck, "b")
    recording.begin(Answer(status=200))
    recording.chunk(b"half")
    recording.fail("read_error", "gone")
    assert kept(deck, "a") == Failure(kind="connect_timeout", message="slow")
    half = Answer(status=200, body=b"half", chunks=(4,))
    assert kept(deck, "b") == Failure(kind="read_error", message="gone", after=half)


def test_a_call_that_never_ended_leaves_nothing(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    begin(deck)
    record(deck, "Hi", "Hello")
    assert play(make(tmp_path), "Hi") == "Hello"


def test_a_recording_with_a_secret_is_refused_and_owed(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    recording = deck.answer(ask(deck, f"my key is {KEY}"))
    assert isinstance(recording, Recording)
    recording.finish(answer("Hello"))
    assert deck.store.keys() == []
    assert kinds(deck) == ["withheld"]
    owed = deck.settle()
    assert isinstance(owed, SecretError)
    assert owed.__traceback__ is None, "its frames hold the secrets"
    assert "OPENAI_API_KEY at line" in str(owed)
    assert KEY not in str(owed)


def test_the_session_gives_the_true_answer_although_the_disk_has_the_redacted_one(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    echo = f"you sent {KEY}"
    assert record(deck, "Hi", echo, "test_a") == record(deck, "Hi", "", "test_b") == answer(echo)
    assert play(make(tmp_path), "Hi") == "you sent REDACTED"


def test_what_the_broker_refuses_is_owed_and_not_recorded(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    with deck.during("t"):
        error = begin(deck).refuse("the budget of 2 calls is spent")
        assert isinstance(error, CallRefused)
        assert str(error) == "the budget of 2 calls is spent"
        assert deck.settle() is error
    assert deck.store.keys() == []
    assert record(deck, "Hi", "Hello") == answer("Hello")  # it is asked again, not played


def test_decks_nest() -> None:
    outer, inner = (make(Path("/nowhere")) for _ in range(2))
    before = decks.current()
    with decks.in_use(outer):
        with decks.in_use(inner):
            assert decks.current() is inner
        assert decks.current() is outer
    assert decks.current() is before


def test_a_stream_that_one_test_left_early_is_asked_again_for_the_next(tmp_path: Path) -> None:
    deck = make(tmp_path, "record")
    with deck.during("left early"):
        first = begin(deck)
        first.begin(answer(""))
        first.chunk(b"data: one")
        first.end(partial=True)
    with deck.during("reads on"):
        second = begin(deck)
        second.finish(answer("whole"))
    assert play(make(tmp_path), "Hi") == "whole"


def test_what_stays_unanswered_is_written_down_at_once(tmp_path: Path) -> None:
    deck = make(tmp_path)
    deck.spill = tmp_path / "owed.jsonl"
    with deck.during("t"), pytest.raises(CassetteMiss):
        deck.answer(ask(deck, "new"))
    (line,) = deck.spill.read_text().splitlines()
    assert json.loads(line)["test"] == "t"
