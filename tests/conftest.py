"""What holds for all tests: those that need an engine run in one worker, the others beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# They look at the containers and processes of the whole machine, and share a port.
ENGINE_TESTS = ("sandbox", "e2e")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in ENGINE_TESTS:
            item.add_marker(pytest.mark.xdist_group("engines"))
