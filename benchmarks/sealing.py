"""What sealing costs: sealed runs against plain ones of the same tests, as ratios within one run.

    python benchmarks/sealing.py [--rounds 7]

- bubblewrap against `pytest` in the same environment; goal: 150 ms more at most, probes included.
- Docker against `docker run` of the same image, as it is written by hand; goal: 1.15 times as long at most.

The four take turns, so that a machine that is busy slows all of them. Medians are compared.
"""

# ruff: noqa: INP001, T201 - a script

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sealtape.config import load
from sealtape.sandbox.engine import find_engine

REPOSITORY = Path(__file__).parents[1]
# In a process of its own, as a user starts it, but with an image that is there: building is not what is measured.
SEALED = """
import sys
from pathlib import Path
from sealtape import config, runs
from sealtape.sandbox.engine import find_engine
from sealtape.screen import Screen
name, image = sys.argv[1:]
def engine(_run, **_):
    found = find_engine(name)
    found._images = {"guest": image}
    return found
runs._engine = engine
sys.exit(runs.replay(runs.Run(settings=config.load(Path.cwd()), screen=Screen(), pytest_args=("-q", "test_a.py"))))
"""
TESTS = "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_a(n):\n    pass\n"


@contextmanager
def project() -> Iterator[Path]:
    """A project with a few quick tests, where a container's user can read it."""
    with tempfile.TemporaryDirectory(prefix="sealtape-benchmark-", dir="/var/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "pyproject.toml").write_text("[tool.sealtape]\n", encoding="utf-8")
        (root / "test_a.py").write_text(TESTS, encoding="utf-8")
        yield root


def commands(root: Path, image: str) -> dict[str, list[str]]:
    """The four ways, by name."""
    container = ["docker", "run", "--rm", "--network", "none", "-v", f"{root}:/project", "-w", "/project", image]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_a.py"]
    return {
        "pytest": [sys.executable, *pytest],
        "sealed, bubblewrap": [sys.executable, "-c", SEALED, "bubblewrap", ""],
        "docker run": [*container, "python", *pytest],
        "sealed, docker": [sys.executable, "-c", SEALED, "docker", image],
    }


def measured(command: list[str], root: Path) -> float:
    """Seconds that a command takes. Raises if it fails: a failure is quick, and no measurement."""
    start = time.perf_counter()
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    return time.perf_counter() - start


def image_of(progress: Callable[[str], None]) -> str:
    settings = load(REPOSITORY, os.environ)
    build = replace(settings.build, containerfile="tests/sandbox/Containerfile")
    engine = find_engine("docker")
    engine.prepare(replace(settings, build=build), progress)
    return str(engine._images["guest"])  # noqa: SLF001  # type: ignore[attr-defined]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    image = image_of(lambda step: print(step, file=sys.stderr))
    with project() as root:
        ways = commands(root, image)
        for command in ways.values():
            measured(command, root)  # disk caches warm, for all of them
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, command in ways.items():
                times[name].append(measured(command, root))
    median = {name: statistics.median(found) for name, found in times.items()}
    for name, seconds in median.items():
        print(f"{name:20} {seconds * 1000:6.0f} ms   (best {min(times[name]) * 1000:.0f})")
    more = (median["sealed, bubblewrap"] - median["pytest"]) * 1000
    ratio = median["sealed, docker"] / median["docker run"]
    print(f"bubblewrap costs {more:.0f} ms more than pytest (goal: 150)")
    print(f"docker takes {ratio:.2f} times as long as docker run (goal: 1.15)")


if __name__ == "__main__":
    main()
