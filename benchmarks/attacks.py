"""Compares what keeps attacks in: sealtape's two engines, a plain container without a network, a guard in Python.

    python benchmarks/attacks.py > table.md     # the table of docs/sealing.md
    python benchmarks/attacks.py --write        # puts it there

Needs both engines and, for the plain container, the image of the sandbox tests. Only this machine's own
loopback, sockets, files and processes are attacked.
"""

# ruff: noqa: INP001, T201 - a script

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sealtape.config import load
from sealtape.guest import attacks
from sealtape.sandbox.attacking import (
    PYTEST,
    SUITE,
    Outcomes,
    attack_host,
    attack_sandbox,
    outcomes,
    prepared,
    scores,
    total,
    variables,
)
from sealtape.sandbox.bait import fill
from sealtape.sandbox.engine import find_engine

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "sealing.md"
BEGIN, END = "<!-- attacks: begin -->\n", "<!-- attacks: end -->\n"


def attack_container(image: str, project: Path, out: Path, bait: Mapping[str, Any]) -> Outcomes:
    """The catalogue in a container as people start one by hand: the project mounted, no network."""
    fill(project, bait)
    guest = SUITE.parents[1]
    mounts = [f"{project}:/project", f"{out}:/out", f"{guest}:/suite/guest:ro"]
    environ = {**variables(Path("/out")), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [
        *("docker", "run", "--rm", "--network", "none", "-w", "/project"),
        *(word for mount in mounts for word in ("-v", mount)),
        *(word for name, value in environ.items() for word in ("-e", f"{name}={value}")),
        *(image, "python", *PYTEST, f"/suite/guest/attacks/{SUITE.name}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return outcomes(out / "attacks.json", f"{done.stdout}{done.stderr}")


def compare() -> str:
    """Every column of the table, and what the two plain ways leave open."""
    settings = load(REPOSITORY, os.environ)
    settings = replace(settings, build=replace(settings.build, containerfile="tests/sandbox/Containerfile"))
    with prepared() as (project, out, bait):
        found: dict[str, Outcomes] = {}
        image = ""
        for name in ("docker", "bubblewrap"):
            engine = find_engine(name)
            engine.prepare(settings, lambda step: print(step, file=sys.stderr))
            image = image or engine._images["guest"]  # noqa: SLF001 - the same image, started by hand
            found[f"sealtape, {name}"] = attack_sandbox(engine, project, out, bait)
        found["`docker run --network none`"] = attack_container(image, project, out, bait)
        found["`pytest --disable-socket`"] = attack_host(project, out, bait, "-p", "pytest_socket", "--disable-socket")
        controls = attack_host(project, out, bait)
    return _table(found, controls)


def _table(found: Mapping[str, Outcomes], controls: Outcomes) -> str:
    results = {name: scores(inside, controls) for name, inside in found.items()}
    lines = ["| group | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    for number, group in enumerate(attacks.GROUPS):
        cells = [f"{parts[number].blocked} of {parts[number].attacks}" for parts in results.values()]
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    lines.append("")
    reached = sum(part.reached for part in next(iter(results.values())))
    lines.append(f"Controls reached on the host: {reached} of {len(controls)}.")
    for name, parts in results.items():
        if any(part.open for part in parts):
            lines += ["", f"{name}: {total(parts).partition(',')[0]}; open are", ""]
            for part in parts:
                if part.open:
                    names = ", ".join(entry.partition(": ")[2] for entry in part.open)
                    lines.append(f"- {part.group}: {names}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the table, or writes it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"replace the table in {PAGE.name}")
    options = parser.parse_args()
    table = compare()
    if not options.write:
        sys.stdout.write(table)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
