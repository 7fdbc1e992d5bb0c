"""Real engines, a tiny project, and a run of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sealtape.config import load
from sealtape.sandbox.engine import Engine, find_engine
from sealtape.sandbox.launch import Outcome, launch
from sealtape.sandbox.policy import Policy, make_policy
from sealtape.sandbox.verdict import Verdict

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Sandbox:
    """A project in a temporary folder, and the engine that runs it."""

    engine: Engine
    root: Path
    out: Path
    verdicts: list[Verdict] = field(default_factory=list)
    policy_changes: dict[str, Any] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def policy(self, args: Sequence[str] = (), *, secrets: dict[str, str] | None = None) -> Policy:
        settings = load(self.root, {})
        policy = make_policy(settings, pytest_args=args, env={}, out=self.out, secrets=secrets or {})
        return replace(policy, **self.policy_changes)

    def run(self, *args: str, secrets: dict[str, str] | None = None, timeout: float = 60) -> Outcome:
        policy = self.policy(args, secrets=secrets)
        return launch(self.engine, policy, announce=self.verdicts.append, timeout=timeout)


def prepared(name: str) -> Engine:
    engine = find_engine(name)
    settings = load(REPOSITORY, os.environ)
    build = replace(settings.build, containerfile="tests/sandbox/Containerfile")
    engine.prepare(replace(settings, build=build), print, broker=True)
    return engine


@pytest.fixture(scope="session")
def engines() -> dict[str, Engine]:
    """Each engine, ready to start guests. One that is missing is a failure, never a skip."""
    return {name: prepared(name) for name in ("docker", "bubblewrap")}


@pytest.fixture(params=["docker", "bubblewrap"])
def engine(request: pytest.FixtureRequest, engines: dict[str, Engine]) -> Engine:
    return engines[request.param]


@pytest.fixture
def sandbox(engine: Engine, tmp_path: Path) -> Iterator[Sandbox]:
    # Not in tmp_path itself: that is closed to the guest's uid where the tests run as root. And with
    # a name that is no plain word, in every test.
    root = Path("/var/tmp", f"sealtape test é {tmp_path.name} {os.getpid()} {engine.name}")  # noqa: S108
    root.mkdir()
    out = tmp_path / "out"
    (out / "files").mkdir(parents=True)
    (out / "files").chmod(0o777)
    made = Sandbox(engine=engine, root=root, out=out)
    made.write("pyproject.toml", "[tool.sealtape]\n")
    try:
        yield made
    finally:
        shutil.rmtree(root)


@pytest.fixture
def remains(sandbox: Sandbox) -> Callable[[], set[str]]:
    """The containers and processes that have the sandbox's project mounted, right now."""

    def listing() -> set[str]:
        command = ["docker", "ps", "-aq", "--filter", f"volume={sandbox.root}"]
        found = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
            try:
                text = mounts.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended since the listing
            if str(sandbox.root).replace(" ", "\\040") in text:
                found.add(f"process {mounts.parent.name}")
        return found

    return listing
