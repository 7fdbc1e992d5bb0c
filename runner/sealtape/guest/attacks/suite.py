"""The catalogue as a test module: pytest runs it in the sandbox, on the host, and wherever else it is compared."""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# For their effect: each enters its attacks.
from . import CATALOGUE, attempt, bypasses, files, kernel, network

__all__ = ["bypasses", "files", "kernel", "network"]

BAIT = json.loads(Path(os.environ["SEALTAPE_BAIT"]).read_text(encoding="utf-8"))
RESULTS: dict[str, dict[str, str]] = {}


def _make(when: str) -> None:
    for one in CATALOGUE:
        if one.when == when:
            RESULTS[f"{one.group}: {one.name}"] = attempt(one, BAIT)
    Path(os.environ["SEALTAPE_ATTACKS"]).write_text(json.dumps(RESULTS), encoding="utf-8")


_make("import")
atexit.register(_make, "exit")


@pytest.fixture(scope="session")
def session() -> Iterator[None]:
    _make("session")
    yield
    _make("teardown")


@pytest.fixture
def late() -> Iterator[threading.Event]:
    gate = threading.Event()

    def wait() -> None:
        gate.wait()
        _make("later")

    thread = threading.Thread(target=wait)
    thread.start()
    yield gate
    gate.set()
    thread.join()


@pytest.mark.usefixtures("session", "late")
def test_attacks() -> None:
    _make("test")
