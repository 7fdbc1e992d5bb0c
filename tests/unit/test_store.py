from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sealtape.cassette import store as stores
from sealtape.cassette.key import http_question
from sealtape.cassette.model import Answer, Cassette, Take
from sealtape.cassette.store import Store, write_atomically
from sealtape.config import QuestionRules
from sealtape.errors import CassetteError

QUESTION = http_question("POST", "https://a.example.com/v1", [], b'{"model":"m"}', rules=QuestionRules())
JSON = ("content-type", "application/json")


def cassette(*takes: Take, at: str = "2026-01-01T00:00:00Z") -> Cassette:
    return Cassette(key=QUESTION.key, question=QUESTION, takes=takes, recorded_at=at)


def whole(body: bytes, *headers: tuple[str, str]) -> Answer:
    return Answer(status=200, headers=headers, body=body, chunks=(len(body),))


def chat(text: str, number: int) -> Answer:
    document = {
        "id": f"chatcmpl-{number}",
        "created": number,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"total_tokens": number},
    }
    headers = (JSON, ("date", f"day {number}"), ("x-request-id", str(number)))
    return whole(json.dumps(document).encode(), *headers)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cassettes")


def files(store: Store) -> list[str]:
    return sorted(str(path.relative_to(store.folder)) for path in store.folder.rglob("*") if path.is_file())


def test_what_was_accepted_is_loaded(store: Store) -> None:
    assert store.keys() == []
    assert store.load(QUESTION.key) is None
    assert store.accept(cassette(chat("Hi", 1))) == "new"
    assert store.load(QUESTION.key) == cassette(chat("Hi", 1))
    assert store.keys() == [QUESTION.key]
    assert list(store.all()) == [cassette(chat("Hi", 1))]


def test_an_answer_that_says_the_same_leaves_the_file_as_it_was(store: Store) -> None:
    store.accept(cassette(chat("Hi", 1)))
    path = store.path(QUESTION.key)
    before, written = path.read_bytes(), path.stat()
    assert store.accept(cassette(chat("Hi", 2), at="2026-02-02T00:00:00Z")) == "unchanged"
    assert path.read_bytes() == before
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (written.st_mtime_ns, written.st_ino)


@pytest.mark.parametrize(
    "takes", [(chat("No", 1),), (chat("Hi", 1), chat("No", 1)), (replace(chat("Hi", 1), status=201),)]
)
def test_another_answer_replaces_the_file(store: Store, takes: tuple[Take, ...]) -> None:
    store.accept(cassette(chat("Hi", 1)))
    assert store.accept(cassette(*takes)) == "updated"
    assert store.load(QUESTION.key) == cassette(*takes)
    assert files(store) == [f"{QUESTION.key}.json"]


def test_what_cannot_be_read_is_replaced(store: Store) -> None:
    store.folder.mkdir()
    store.path(QUESTION.key).write_text("{")
    assert store.accept(cassette(chat("Hi", 1))) == "updated"
    assert store.load(QUESTION.key) == cassette(chat("Hi", 1))


def test_large_bodies_lie_beside_once_and_come_back(store: Store) -> None:
    image = whole(b"\xff" * 5000)
    store.accept(cassette(image, replace(image, status=201)))
    assert len(files(store)) == 2
    assert store.load(QUESTION.key) == cassette(image, replace(image, status=201))


def test_a_missing_blob_is_named(store: Store) -> None:
    store.accept(cassette(whole(b"\xff" * 5000)))
    (blob,) = (store.folder / "blobs").iterdir()
    blob.unlink()
    with pytest.raises(CassetteError, match=f"{blob.name} is missing") as caught:
        store.load(QUESTION.key)
    assert "record again" in str(caught.value)


def test_a_file_under_a_wrong_name_is_refused_with_the_right_one(store: Store) -> None:
    store.accept(cassette(chat("Hi", 1)))
    store.path(QUESTION.key).rename(store.path("0" * 16))
    with pytest.raises(CassetteError, match=f"holds the key {QUESTION.key}") as caught:
        store.load("0" * 16)
    assert f"rename it to {QUESTION.key}.json" in str(caught.value)


def test_a_corrupt_file_is_refused_where_it_is_asked_for_and_passed_over_elsewhere(store: Store) -> None:
    store.accept(cassette(chat("Hi", 1)))
    path = store.path("0" * 16)
    path.write_text('{"key": ')
    with pytest.raises(CassetteError, match=f"{path} is not valid JSON"):
        store.load("0" * 16)
    assert [found.key for found in store.all()] == [QUESTION.key]


def test_a_file_that_no_cassette_can_be_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.accept(cassette(chat("Hi", 1)))
    monkeypatch.setattr(stores, "MAX_BYTES", 100)
    with pytest.raises(CassetteError, match="is larger than 100 bytes"):
        store.load(QUESTION.key)


def test_a_folder_in_place_of_a_file_is_an_error_with_its_path(store: Store) -> None:
    store.path("0" * 16).mkdir(parents=True)
    with pytest.raises(CassetteError, match="cannot be read: Is a directory"):
        store.load("0" * 16)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_files_mode_follows_the_umask(store: Store, umask: int) -> None:
    before = os.umask(umask)
    try:
        store.accept(cassette(chat("Hi", 1)))
    finally:
        assert os.umask(before) == umask
    assert stat.S_IMODE(store.path(QUESTION.key).stat().st_mode) == 0o666 & ~umask


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "no bytes")  # type: ignore[arg-type]
    target.unlink()
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(target, b"new")
    assert list(tmp_path.iterdir()) == [target]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def test_many_writers_of_one_file_leave_one_whole_file_with_an_ordinary_mode(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    before = os.umask(0o022)
    try:
        in_threads(20, lambda number: write_atomically(target, bytes([number]) * 10_000))
        data = target.read_bytes()
        assert len(data) == 10_000
        assert len(set(data)) == 1
        assert stat.S_IMODE(target.stat().st_mode) == 0o644
        assert list(tmp_path.iterdir()) == [target]
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
