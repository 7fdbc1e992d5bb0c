"""The guest's first program: lock, probe, wait for the host's word, become pytest.

It runs as `python -I -S entry.py`, from the host's own copy, with the standard library only. One
JSON line comes in on stdin (the plan), one goes out on stdout (what was found), and then `go`
comes in or nothing does. From `go` on, stdout and stderr belong to pytest.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import site
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.stdin.readline())
    for name, limit in plan["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    problem = _lock()
    found = {"probes": _sibling("probes").run(plan), "software": _software(), "problem": problem or _blind(plan)}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    if sys.stdin.readline().strip() != "go":
        sys.exit(70)
    _become_pytest(plan["command"])


def _sibling(name: str) -> Any:
    """A module beside this one, as part of the package or, under `-I -S`, as a plain script."""
    if __package__:
        return importlib.import_module(f"{__package__}.{name}")
    # At the end and only for this import: nothing in this folder may stand in for the standard library.
    folder = str(Path(__file__).parent)
    sys.path.append(folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def _lock() -> str:
    try:
        _sibling("seccomp").lock()
    except OSError as error:
        return f"the guest could not lock itself: {error.strerror}"
    return ""


def _blind(plan: dict[str, Any]) -> str:
    project = plan["project"]
    try:
        os.listdir(project)  # noqa: PTH208 - an answer or an error, no paths wanted
    except OSError as error:
        return f"the guest runs as uid {os.getuid()} and cannot read the project: {error.strerror}"
    return ""


def _software() -> dict[str, str | None]:
    """What pytest's interpreter will find, asked now: a missing package is one sentence, not a traceback."""
    with contextlib.redirect_stdout(sys.stderr):  # a .pth file that prints must not break the protocol
        site.main()
    versions: dict[str, str | None] = {"python": sys.version.split()[0], "executable": sys.executable}
    return {**versions, **{package: _version(package) for package in ("sealtape", "pytest")}}


def _version(package: str) -> str | None:
    """By the name of its metadata's folder: importlib.metadata takes longer to import than all probes to run."""
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):  # noqa: PTH208
            stem, suffix = os.path.splitext(name)  # noqa: PTH122
            if suffix in (".dist-info", ".egg-info") and stem.startswith(f"{package}-"):
                return stem.split("-")[1]
    return None


def _become_pytest(command: list[str]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)  # noqa: PTH208
    os.execve(sys.executable, [sys.executable, *command], os.environ)  # noqa: S606 - becoming it is the point


if __name__ == "__main__":
    main()
