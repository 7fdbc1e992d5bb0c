from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sealtape
from sealtape.cassette import deck as decks
from sealtape.cassette.deck import Recording
from sealtape.cassette.model import Said
from sealtape.config import Mode
from sealtape.errors import CassetteMiss, ConfigError


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.sealtape]\ncassettes = "tapes"\n')
    monkeypatch.chdir(tmp_path)
    for name in ("CASSETTE_MODE", "CASSETTE_DIR", "SEALTAPE_GUEST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def say(deck: decks.Deck, prompt: str, text: str) -> None:
    recording = deck.answer(deck.call_question("m", prompt, 0.0, {}))
    assert isinstance(recording, Recording)
    recording.finish(Said(text=text))


def test_what_one_session_records_the_next_one_plays(project: Path) -> None:
    with sealtape.session("record") as deck:
        say(deck, "Hi", "Hello")
        assert not (project / "tapes").exists()  # it waits outside until it is known to be good
    with sealtape.session() as deck:
        assert deck.mode is Mode.REPLAY
        assert deck.answer(deck.call_question("m", "Hi", 0.0, {})) == Said(text="Hello")
        assert sealtape.call("m", "Hi") == "Hello"
    assert [path.stem for path in (project / "tapes").iterdir()] == [sealtape.key_for("m", "Hi", 0.0)]


def test_a_session_that_fails_keeps_what_it_paid_for_and_ends(project: Path) -> None:
    before = decks.current()

    def fail() -> None:
        with sealtape.session("record") as deck:
            say(deck, "Hi", "Hello")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(list((project / "tapes").glob("*.json"))) == 1
    assert decks.current() is before


def test_settings_are_given_as_in_the_table(project: Path) -> None:
    grants = {"local": {"hosts": ["http://127.0.0.1:1"]}}
    with sealtape.session("off", cassettes=project / "other", grants=grants, ignore_hosts=["t.example.com"]) as deck:
        assert deck.store.folder == project / "other"
        assert deck.mode is Mode.OFF
        assert deck.settings.grants[0].name == "local"
        assert deck.settings.ignore_hosts == ("t.example.com",)


def test_the_environment_is_read_when_the_session_starts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSETTE_MODE", "off")
    monkeypatch.setenv("CASSETTE_DIR", "elsewhere")
    with sealtape.session() as deck:
        assert (deck.mode, deck.store.folder) == (Mode.OFF, project / "elsewhere")


def test_a_wrong_setting_is_an_error_on_entry() -> None:
    with pytest.raises(ConfigError, match="perhaps you meant 'grants'"), sealtape.session(grant={}):
        pass
    with pytest.raises(ConfigError, match="'live'; it is one of replay, record, off"), sealtape.session("live"):
        pass


def test_sessions_nest() -> None:
    with sealtape.session(cassettes="outer") as outer:
        with sealtape.session(cassettes="inner") as inner:
            assert decks.current() is inner
        assert decks.current() is outer


@pytest.mark.parametrize(("file", "command"), [("noxfile.py", "nox -s record"), (None, "sealtape record")])
def test_a_miss_names_the_command_of_this_project(project: Path, file: str | None, command: str) -> None:
    if file:
        (project / file).write_text("")
    with sealtape.session(), pytest.raises(CassetteMiss, match=f"record it    {command}"):
        sealtape.call("m", "Hi")


def test_a_program_without_pytest_runs_under_a_session(project: Path) -> None:
    program = """
import sys, sealtape
with sealtape.session():
    try:
        sealtape.call("m", "Hi")
    except Exception:
        print("swallowed")
    except sealtape.CassetteMiss as miss:
        print("missed", miss.key)
print("pytest" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=project, check=True
    )
    assert done.stdout.splitlines() == [f"missed {sealtape.key_for('m', 'Hi', 0.0)}", "False"]
    assert done.stderr == ""
