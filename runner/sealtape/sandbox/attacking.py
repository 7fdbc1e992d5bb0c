"""The attack catalogue, made in a sandbox and, as its control, on the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sealtape.config import Settings
from sealtape.errors import EngineError
from sealtape.guest import attacks
from sealtape.sandbox.bait import bait_project, fill, laid_out
from sealtape.sandbox.engine import Engine
from sealtape.sandbox.launch import launch
from sealtape.sandbox.policy import GUEST, OUT, make_policy

Outcomes = Mapping[str, Mapping[str, str]]
SUITE = Path(attacks.__file__).with_name("suite.py")
# Neither the project's settings nor its plugins: what holds here is the sandbox alone.
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-c", "/dev/null", "--rootdir=/")


@dataclass(frozen=True, kw_only=True)
class Score:
    """One group's result. `open` are attacks that got through, `unproven` those that prove nothing here."""

    group: str
    attacks: int
    blocked: int
    reached: int
    open: tuple[str, ...]
    unproven: tuple[str, ...]


@contextmanager
def prepared() -> Iterator[tuple[Path, Path, dict[str, Any]]]:
    """A project, a folder for results that a guest can write to, and bait all over this machine."""
    if sys.platform != "linux":
        raise EngineError("the attacks are made for Linux, on the host as well", tip="run this in a Linux machine")
    with bait_project() as project, tempfile.TemporaryDirectory(prefix="sealtape-") as folder:
        out = Path(folder, "out")
        out.mkdir()
        with laid_out(project) as bait:
            (out / "bait.json").write_text(json.dumps(bait), encoding="utf-8")
            yield project, out, bait


def attack_host(project: Path, out: Path, bait: Mapping[str, Any], *options: str) -> Outcomes:
    """The catalogue on the host, as an ordinary child of this process."""
    fill(project, bait)
    found = out / "attacks.json"
    environ = {**os.environ, **variables(out), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, *PYTEST, *options, str(SUITE)],
        cwd=project,
        env=environ,
        pass_fds=bait["inherited"],
        capture_output=True,
        text=True,
        check=False,
    )
    return outcomes(found, f"{done.stdout}{done.stderr}")


def attack_sandbox(engine: Engine, project: Path, out: Path, bait: Mapping[str, Any]) -> Outcomes:
    """The catalogue in a sandbox of `engine`."""
    fill(project, bait)
    secrets = {"OPENAI_API_KEY": bait["token"]}
    policy = make_policy(Settings(root=project), pytest_args=(), env={}, out=out, secrets=secrets)
    env = {**policy.env, **variables(Path(OUT)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    suite = f"{GUEST}/attacks/{SUITE.name}"
    # Its own output would only say that one test has passed.
    command = (*PYTEST, "-p", "no:terminal", suite)
    outcome = launch(engine, replace(policy, command=command, env=env), announce=lambda _: None, timeout=300)
    if not outcome.verdict.sealed:
        raise EngineError(f"{engine.name} is not sealed, so nothing was attacked: {outcome.verdict.line()}")
    return outcomes(out / "attacks.json", f"pytest ended with {outcome.exit_code}")


def variables(out: Path) -> dict[str, str]:
    return {"SEALTAPE_BAIT": f"{out}/bait.json", "SEALTAPE_ATTACKS": f"{out}/attacks.json"}


def outcomes(path: Path, otherwise: str) -> Outcomes:
    """What the suite wrote, once."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(f"the attacks left no result: {otherwise}") from error
    path.unlink()
    return {str(name): dict(result) for name, result in json.loads(text).items()}


def scores(inside: Outcomes, controls: Outcomes) -> list[Score]:
    """What held, group by group. An attack counts as blocked only if it worked outside."""
    return [_score(group, inside, controls) for group in attacks.GROUPS]


def _score(group: str, inside: Outcomes, controls: Outcomes) -> Score:
    names = [name for name in controls if name.startswith(f"{group}: ")]
    reached = [name for name in names if controls[name]["outcome"] == "through"]
    found = {name: inside.get(name, {"outcome": "broken"})["outcome"] for name in names}
    unproven = [name for name in names if name not in reached or found[name] == "broken"]
    return Score(
        group=group,
        attacks=len(names),
        blocked=sum(found[name] == "blocked" for name in reached),
        reached=len(reached),
        open=tuple(name for name in names if found[name] == "through"),
        unproven=tuple(unproven),
    )


def total(parts: Sequence[Score]) -> str:
    """The whole in one line."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(attacks=part.attacks, blocked=part.blocked, reached=part.reached)
    every = sums["attacks"]
    return f"{sums['blocked']} of {every} attacks blocked, {sums['reached']} of {every} controls reached"
