"""Record, replay, miss, record again: the main job, on both engines."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from .conftest import KEY

TESTS = """
    from shop import ask, ask_or_fall_back

    def test_greeting():
        assert ask("hello shop") == "HELLO SHOP"

    def test_order():
        assert ask_or_fall_back("where is order 12 of my list", temperature=0.5) != ""
"""


def record(project, provider):
    project.write("tests/test_shop.py", TESTS)
    done = project.run("record", OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stdout
    assert len(project.cassettes) == 2, done.stdout
    provider.calls.clear()
    return done.stdout


@pytest.fixture(scope="module")
def tapes():
    """Per engine, what its record session brought: one is enough for all tests of this module."""
    return {}


@pytest.fixture
def recorded(project, provider, tapes):
    """A project with both questions recorded, by its own engine."""
    if project.engine not in tapes:
        record(project, provider)
        tapes[project.engine] = {path.name: path.read_bytes() for path in project.cassettes}
    project.write("tests/test_shop.py", TESTS)
    for name, data in tapes[project.engine].items():
        (project.root / "cassettes").mkdir(exist_ok=True)
        (project.root / "cassettes" / name).write_bytes(data)
    return project


def test_what_is_recorded_once_is_replayed_without_key_and_network(project, provider):
    shown = record(project, provider)
    assert f"sealed   {project.engine} · no network" in shown
    assert "2 live calls, 10 tokens" in shown
    assert "2 new, 0 updated, 0 unchanged" in shown
    done = project.run("replay")
    assert done.returncode == 0, done.stdout
    assert f"sealed   {project.engine} · no network" in done.stdout
    assert "2 passed" in done.stdout
    assert provider.calls == []


def test_the_provider_gets_the_real_key_and_nobody_else(project, provider):
    project.write("tests/test_shop.py", TESTS)
    project.run("record", OPENAI_API_KEY=KEY)
    assert {call["authorization"] for call in provider.calls} == {f"Bearer {KEY}"}
    written = [path for path in project.root.rglob("*") if path.is_file()]
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


def test_recording_again_changes_only_what_the_model_says_differently(recorded, project, provider):
    before = {path: path.read_bytes() for path in project.cassettes}
    done = project.run("record", OPENAI_API_KEY=KEY)
    assert "0 new, 0 updated, 2 unchanged" in done.stdout
    assert {path: path.read_bytes() for path in project.cassettes} == before
    assert len(provider.calls) == 2
    provider.answer = lambda text: text.upper() + ("!" if "order" in text else "")
    done = project.run("record", OPENAI_API_KEY=KEY)
    assert "0 new, 1 updated, 1 unchanged" in done.stdout


def test_only_what_is_missing_is_asked_if_so_wished(recorded, project, provider):
    project.cassettes[0].unlink()
    done = project.run("record", "--missing", OPENAI_API_KEY=KEY)
    assert "1 new, 0 updated, 0 unchanged" in done.stdout
    assert len(provider.calls) == 1


def test_a_missing_recording_fails_the_test_and_the_command_it_gives_repairs_it(recorded, project, provider):
    order = next(path for path in project.cassettes if "order 12" in path.read_text())
    kept = order.read_text()
    order.unlink()
    done = project.run("replay")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert json.loads(kept)["key"] in done.stdout
    assert provider.calls == []
    line = next(line for line in done.stdout.splitlines() if "record it" in line)
    command = shlex.split(line.partition("record it")[2])
    assert command == ["sealtape", "record", "--", "tests/test_shop.py::test_order"]
    pasted = [sys.executable, "-m", *command[:2], "--engine", project.engine, *command[2:]]
    again = project.shell(pasted, OPENAI_API_KEY=KEY)
    assert again.returncode == 0, again.stdout
    assert len(provider.calls) == 1
    assert project.run("replay").returncode == 0


def test_a_miss_compares_with_the_nearest_recording(recorded, project, provider):
    project.write("tests/test_shop.py", TESTS.replace("order 12", "order 13").replace("0.5", "0.7, max_tokens=9"))
    shown = project.run("replay").stdout
    lines = [line.lstrip("E ").rstrip() for line in shown.splitlines() if line.startswith("E  ")]
    start = next(i for i, line in enumerate(lines) if line.startswith("nearest"))
    heads = [line.split()[0] for line in lines[start:]]
    assert heads[:8] == ["nearest", "prompt", "recorded", "asked", "model", "temperature", "/max_tokens", "record"]
    assert "order 12" in lines[start + 2]
    assert "order 13" in lines[start + 3]
    assert lines[start + 5].endswith("0.5 → 0.7")


@pytest.mark.parametrize("project", ["bubblewrap"], indirect=True)  # what a question is, no engine decides
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hello shop", "hello shops"),
        ('ask("hello shop")', 'ask("hello shop", temperature=0.1)'),
        ('ask("hello shop")', 'ask("hello shop", seed=7)'),
        (
            'ask("hello shop")',
            'ask("hello shop", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])',
        ),
        ('ask("hello shop")', 'ask("hello shop", client={"api_key": "sk-somebody-elses"})'),
    ],
)
def test_any_change_of_the_question_is_a_miss(recorded, project, provider, old, new):
    assert old in TESTS
    project.write("tests/test_shop.py", TESTS.replace(old, new, 1))
    done = project.run("replay", "-k", "greeting")
    assert done.returncode == 1, done.stdout
    assert "CassetteMiss" in done.stdout
    assert "missed 1" in done.stdout
    assert provider.calls == []


def test_another_key_in_the_environment_is_still_a_hit(recorded, project, provider):
    done = project.run("replay", OPENAI_API_KEY="sk-another-key-of-this-machine")
    assert done.returncode == 0, done.stdout


def test_the_report_says_who_asked_what(recorded, project, provider):
    done = project.run("replay", "--report", "report.json")
    assert done.returncode == 0, done.stdout
    report = json.loads((project.root / "report.json").read_text())
    assert report["version"] == 1
    assert report["verdict"]["sealed"] is True
    assert set(report["tests"]) == {"tests/test_shop.py::test_greeting", "tests/test_shop.py::test_order"}
    assert [len(entry["played"]) for entry in report["tests"].values()] == [1, 1]
    assert report["unused"] == []
    assert report["tokens"] == 10
