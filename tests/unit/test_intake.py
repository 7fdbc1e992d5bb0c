from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from sealtape.broker.intake import take_in
from sealtape.cassette import codec
from sealtape.cassette.model import Answer, Cassette, Failure, Question
from sealtape.cassette.store import Store

SECRET = "a-real/key-of-the-host"
SECRETS = {"ACME_KEY": SECRET}


@pytest.fixture
def outbox(tmp_path):
    folder = tmp_path / "outbox"
    folder.mkdir()
    return folder


@pytest.fixture
def cassettes(tmp_path):
    return tmp_path / "cassettes"


def recording(asked="hello", *takes):
    question = Question("http", {"method": "POST", "url": "http://127.0.0.1:8765/echo", "body": {"say": asked}})
    return Cassette(
        key=question.key, question=question, takes=takes or (said("hi"),), recorded_at="2026-01-01T00:00:00Z"
    )


def said(text, status=200):
    body = json.dumps({"echo": text}).encode()
    return Answer(status=status, headers=(("content-type", "application/json"),), body=body, chunks=(len(body),))


def journal(outbox, *entries):
    lines = [json.dumps({"test": t, "outcome": o, "keys": k, "refused": r}) + "\n" for t, o, k, r in entries]
    (outbox / "journal.jsonl").write_text("".join(lines))


def names(folder: Path):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_good_is_taken_in_and_what_is_the_same_is_left_alone(outbox, cassettes):
    new, changed, same = recording("new"), recording("changed"), recording("same")
    Store(cassettes).accept(recording("changed", said("as it was")))
    Store(cassettes).accept(same)
    before = (cassettes / f"{same.key}.json").read_bytes()
    for cassette in (new, changed, recording("same")):
        Store(outbox).accept(cassette)
    report = take_in(outbox, cassettes, secrets=SECRETS)

    assert (report.new, report.updated, report.unchanged) == (
        [f"{new.key}.json"],
        [f"{changed.key}.json"],
        [f"{same.key}.json"],
    )
    assert (report.kept_out, report.refused) == ([], [])
    assert (cassettes / f"{same.key}.json").read_bytes() == before
    assert Store(cassettes).load(changed.key) == changed
    assert report.summary(cassettes.parent) == [
        "recordings in cassettes/: 1 new, 1 updated, 1 unchanged",
        f"  new: cassettes/{new.key}.json",
        f"  updated: cassettes/{changed.key}.json",
    ]


def test_large_bodies_come_along(outbox, cassettes):
    image = Answer(status=200, headers=(("content-type", "image/png"),), body=bytes(range(256)) * 40, chunks=(10240,))
    cassette = recording("draw", image)
    Store(outbox).accept(cassette)
    assert len(names(outbox)) == 2
    assert take_in(outbox, cassettes, secrets=SECRETS).new == [f"{cassette.key}.json"]
    assert names(cassettes) == names(outbox)
    assert Store(cassettes).load(cassette.key) == cassette


def test_a_failed_tests_recordings_stay_out_unless_another_test_needs_them(outbox, cassettes):
    failed, shared, unmentioned = recording("failed"), recording("shared"), recording("unmentioned")
    for cassette in (failed, shared, unmentioned):
        Store(outbox).accept(cassette)
    journal(
        outbox,
        ("test_a.py::test_fails", "failed", [failed.key, shared.key], False),
        ("test_a.py::test_passes", "passed", [shared.key], False),
    )
    report = take_in(outbox, cassettes, secrets=SECRETS)
    assert report.kept_out == [(f"{failed.key}.json", "its test failed: test_a.py::test_fails")]
    assert sorted(report.new) == sorted([f"{shared.key}.json", f"{unmentioned.key}.json"])


def test_what_was_recorded_until_the_broker_stopped_the_test_is_kept(outbox, cassettes):
    paid_for = recording("paid for")
    Store(outbox).accept(paid_for)
    journal(outbox, ("test_a.py::test_over_budget", "failed", [paid_for.key], True))
    assert take_in(outbox, cassettes, secrets=SECRETS).new == [f"{paid_for.key}.json"]


@pytest.mark.parametrize("status", [429, 500, 529])
def test_answers_of_a_provider_in_trouble_stay_out_unless_wanted(outbox, cassettes, status):
    only = recording("only", said("no", status))
    retried = recording("retried", said("no", status), said("yes"))
    # Other failures are what tests of failure ask for.
    meant = recording("meant", said("no such model", 404), Failure(kind="read_timeout"))
    for cassette in (only, retried, meant):
        Store(outbox).accept(cassette)
    report = take_in(outbox, cassettes, secrets=SECRETS)
    reason = f"answered {status}, which replay will leave out; --keep-failures records it"
    assert sorted(report.kept_out) == sorted([(f"{only.key}.json", reason), (f"{retried.key}.json", reason)])
    assert names(cassettes) == sorted([f"{retried.key}.json", f"{meant.key}.json"])
    assert Store(cassettes).load(retried.key).takes == (said("yes"),)
    assert Store(cassettes).load(meant.key) == meant

    assert take_in(outbox, cassettes, secrets=SECRETS, keep_failures=True).kept_out == []
    assert Store(cassettes).load(only.key) == only
    assert Store(cassettes).load(retried.key) == retried


def symlink(path, tmp_path):
    target = tmp_path / "elsewhere.json"
    target.write_bytes(codec.dumps(recording())[0])
    path.symlink_to(target)


def hard_link(path, tmp_path):
    target = tmp_path / "elsewhere.json"
    target.write_bytes(codec.dumps(recording())[0])
    path.hardlink_to(target)


def pipe(path, _tmp_path):
    os.mkfifo(path)


def unix_socket(path, _tmp_path):
    with socket.socket(socket.AF_UNIX) as bound:
        # The path is too long for an address.
        folder = os.open(path.parent, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def folder(path, _tmp_path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (symlink, "it is not a regular file"),
        (hard_link, "it is linked from elsewhere"),
        (pipe, "it is not a regular file"),
        (unix_socket, "it is not a regular file"),
        (folder, "it is not a regular file"),
    ],
)
def test_only_regular_files_are_opened(outbox, cassettes, tmp_path, make, reason):
    make(outbox / f"{recording().key}.json", tmp_path)
    report = take_in(outbox, cassettes, secrets=SECRETS)
    assert report.refused == [(f"{recording().key}.json", reason)]
    assert names(cassettes) == []


@pytest.mark.parametrize(
    "name", ["conftest.py", "../x.json", "0123456789ABCDEF.json", "0123456789abcdef.json\n", ".json"]
)
def test_foreign_names_are_refused_and_shown_harmlessly(outbox, cassettes, name):
    (outbox / name.replace("/", "_")).write_text("{}")
    (outbox / "\x1b[2Jclear").write_text("{}")
    report = take_in(outbox, cassettes, secrets=SECRETS)
    assert [reason for _, reason in report.refused] == ["no recording has such a name"] * 2
    assert all(shown.isprintable() for shown, _ in report.refused)


def test_half_written_files_stay_out_quietly(outbox, cassettes):
    (outbox / ".abc.part").write_text("{")
    report = take_in(outbox, cassettes, secrets=SECRETS)
    assert report.kept_out == [(".abc.part", "it was not written to its end")]
    assert report.refused == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda raw: b"{" + raw, "is not valid JSON"),
        (lambda raw: raw.replace(b'"hello"', b'"hullo"'), "its question hashes to"),
        (lambda _: b"[" * 100_000, "nested too deeply"),
        (lambda raw: raw.replace(b'"format": 1', b'"format": 9'), "format 9"),
        (lambda _: codec.dumps(recording("another"))[0], "it holds the key"),
    ],
)
def test_what_is_not_the_recording_it_says_is_refused(outbox, cassettes, change, reason):
    (outbox / f"{recording().key}.json").write_bytes(change(codec.dumps(recording())[0]))
    ((name, said_why),) = take_in(outbox, cassettes, secrets=SECRETS).refused
    assert name == f"{recording().key}.json"
    assert reason in said_why
    assert names(cassettes) == []


def test_a_blob_must_be_what_its_name_says(outbox, cassettes):
    image = Answer(status=200, headers=(("content-type", "image/png"),), body=bytes(range(256)) * 16, chunks=(4096,))
    Store(outbox).accept(recording("draw", image))
    (blob,) = (outbox / "blobs").iterdir()
    blob.write_bytes(b"something else")
    ((_, reason),) = take_in(outbox, cassettes, secrets=SECRETS).refused
    assert reason == f"its blob {blob.name} holds something else"
    blob.unlink()
    ((_, reason),) = take_in(outbox, cassettes, secrets=SECRETS).refused
    assert reason == f"its blob {blob.name} is missing"
    (outbox / "blobs").rmdir()
    (outbox / "blobs").symlink_to("/etc")
    ((_, reason),) = take_in(outbox, cassettes, secrets=SECRETS).refused
    assert reason == f"its blob {blob.name} is missing"


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        "a-real%2Fkey-of-the-host",
        "YS1yZWFsL2tleS1vZi10aGUtaG9zdA==",
        "a\\u002dreal/key-of-the-host",  # as an escape in the file, the value itself once it is read
    ],
)
def test_a_recording_with_a_secret_is_refused_without_showing_it(outbox, cassettes, written):
    raw = codec.dumps(recording("hello", said("hi")))[0].replace(b'"hi"', f'"{written}"'.encode())
    (outbox / f"{recording().key}.json").write_bytes(raw)
    assert f'"{written}"'.encode() in raw
    ((_, reason),) = take_in(outbox, cassettes, secrets=SECRETS).refused
    assert "would carry a secret: ACME_KEY at line" in reason
    assert "real" not in reason
    assert names(cassettes) == []
    # The control: without that secret in the session, the same file is good.
    assert take_in(outbox, cassettes, secrets={}).new == [f"{recording().key}.json"]


def test_a_journal_that_makes_no_sense_decides_nothing(outbox, cassettes):
    Store(outbox).accept(recording())
    (outbox / "journal.jsonl").write_bytes(b'{"test": 1}\n[]\n\xff\n{"test": "t", "outcome": "failed", "keys"')
    assert take_in(outbox, cassettes, secrets=SECRETS).new == [f"{recording().key}.json"]


def test_a_path_outside_of_the_project_is_shown_as_it_is(outbox, cassettes, tmp_path):
    assert take_in(outbox, cassettes, secrets={}).summary(tmp_path / "elsewhere") == [
        f"recordings in {cassettes}/: 0 new, 0 updated, 0 unchanged"
    ]
