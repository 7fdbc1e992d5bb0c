"""What pytest gets in the guest: the arguments as they were typed, seen from the project's root."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sealtape.config import Settings

# pytest's options whose value is the next argument: a path after one of these names no tests.
_WITH_VALUE = frozenset(
    (
        *("-c", "-k", "-m", "-n", "-o", "-p", "-r", "-W"),
        *("--basetemp", "--color", "--confcutdir", "--cov", "--cov-config", "--cov-report", "--deselect", "--dist"),
        *("--durations", "--ignore", "--ignore-glob", "--import-mode", "--junitxml", "--junit-xml", "--log-level"),
        *("--maxfail", "--override-ini", "--rootdir", "--tb", "--timeout", "--verbosity"),
    )
)
# With these pytest runs no tests and makes no report.
_ONLY_TELLS = frozenset({"-h", "--help", "-V", "-VV", "--version", "--markers", "--fixtures", "--fixtures-per-test"})


def pytest_arguments(settings: Settings, args: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The arguments, and the configured tests where none of them names any.

    Paths that exist below `folder`, where the command was typed, are made to begin at the
    project's root, where pytest starts.
    """
    typed = list(_typed(settings.root, args, folder.resolve()))
    arguments = tuple(argument for argument, _ in typed)
    if any(names_tests for _, names_tests in typed):
        return arguments
    default = [name for name in settings.tests if "tests" in settings.origin or (settings.root / name).exists()]
    return (*arguments, *default)


def only_tells(args: Sequence[str]) -> bool:
    """Whether pytest is asked about itself, and not to run tests."""
    return not _ONLY_TELLS.isdisjoint(args)


def _typed(root: Path, args: Sequence[str], folder: Path) -> Iterator[tuple[str, bool]]:
    """Each argument as pytest is to see it, and whether it names tests."""
    before = ""
    for argument in args:
        path, colons, rest = argument.partition("::")
        if argument.startswith("-") or before in _WITH_VALUE:
            yield argument, False
        elif (folder / path).exists() and (folder / path).is_relative_to(root.resolve()):
            yield os.path.relpath(folder / path, root.resolve()) + colons + rest, True
        else:
            yield argument, (root / path).exists()
        before = argument
