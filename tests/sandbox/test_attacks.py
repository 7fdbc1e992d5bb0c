"""The attack catalogue: all of it is blocked in both sandboxes, and all of it works outside."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from sealtape import runs
from sealtape.config import load
from sealtape.guest.attacks import GROUPS, Attack, MissingToolError, attempt
from sealtape.sandbox import attacking
from sealtape.screen import Screen


@pytest.fixture(scope="module")
def prepared():
    with attacking.prepared() as ready:
        yield ready


@pytest.fixture(scope="module")
def controls(prepared):
    return attacking.attack_host(*prepared)


def test_every_control_works_on_the_host(controls):
    assert {name: result for name, result in controls.items() if result["outcome"] != "through"} == {}
    counts = Counter(name.partition(": ")[0] for name in controls)
    assert set(counts) == set(GROUPS)
    assert counts.total() >= 60


def test_every_attack_is_blocked_in_the_sandbox(engine, prepared, controls):
    inside = attacking.attack_sandbox(engine, *prepared)
    assert {name: result for name, result in inside.items() if result["outcome"] != "blocked"} == {}
    assert set(inside) == set(controls)


def test_a_guard_in_python_alone_is_a_seal_with_holes(prepared, controls):
    found = attacking.attack_host(*prepared, "-p", "pytest_socket", "--disable-socket")
    outcomes = Counter(result["outcome"] for name, result in found.items() if name.startswith("Python: "))
    assert outcomes["through"] >= 5
    assert found["network: create_connection"]["outcome"] == "blocked"
    assert set(found) == set(controls)


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (lambda _: "got it", "through"),
        (lambda _: None, "blocked"),
        (lambda _: open("/nonexistent"), "blocked"),  # noqa: PTH123, SIM115
        (lambda _: 1 / 0, "broken"),
    ],
)
def test_an_attack_ends_in_one_of_three_ways(run, outcome):
    assert attempt(Attack("a", "b", run), {})["outcome"] == outcome


def test_a_missing_tool_is_no_protection():
    def run(_bait):
        raise MissingToolError("curl")

    broken = {"a: b": attempt(Attack("a", "b", run), {})}
    assert broken["a: b"] == {"outcome": "broken", "detail": "MissingToolError: curl"}
    through = {"a: b": {"outcome": "through"}}
    score = attacking._score("a", broken, through)
    assert (score.blocked, score.reached, score.unproven) == (0, 1, ("a: b",))
    score = attacking._score("a", {"a: b": {"outcome": "blocked"}}, broken)
    assert (score.blocked, score.reached, score.unproven) == (0, 0, ("a: b",))


@pytest.fixture
def doctor(tmp_path, monkeypatch, engines):
    """`sealtape doctor --attack`, with the images of this session."""
    monkeypatch.setattr(runs, "find_engine", engines.__getitem__)
    for engine in engines.values():
        monkeypatch.setattr(type(engine), "prepare", lambda *_: None)
    return lambda name, **options: runs.attack(
        runs.Run(settings=load(tmp_path, {}), screen=Screen(), engine=name), **options
    )


def test_doctor_shows_the_attacks(doctor, capsys):
    assert doctor("bubblewrap", as_json=False) == 0
    headline, heading, *rows = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"bubblewrap · (\d+) of \1 attacks blocked, \1 of \1 controls reached", headline)
    assert heading.split() == ["group", "blocked", "controls", "reached"]
    assert [row.rsplit(maxsplit=6)[0].strip() for row in rows] == list(GROUPS)


def test_doctor_prints_the_attacks_as_json(doctor, capsys):
    assert doctor("docker", as_json=True) == 0
    groups = json.loads(capsys.readouterr().out)["engines"]["docker"]["groups"]
    assert [group["group"] for group in groups] == list(GROUPS)
    assert all(group["blocked"] == group["reached"] == group["attacks"] for group in groups)


def test_the_docs_have_the_table(controls):
    page = Path(__file__).parents[2].joinpath("docs", "sealing.md").read_text()
    counts = Counter(name.partition(": ")[0] for name in controls)
    for group in GROUPS:
        assert f"| {group} | {counts[group]} of {counts[group]} | {counts[group]} of {counts[group]} | " in page
    assert f"Controls reached on the host: {len(controls)} of {len(controls)}." in page
