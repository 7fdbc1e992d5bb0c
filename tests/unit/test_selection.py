from __future__ import annotations

from pathlib import Path

import pytest

from sealtape.config import load
from sealtape.selection import only_tells, pytest_arguments


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("tests/test_a.py", "sub/test_b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").write_text("[tool.sealtape]\n")
    return tmp_path


def chosen(root: Path, *args: str, folder: str = ".") -> tuple[str, ...]:
    return pytest_arguments(load(root, {}), args, root / folder)


def test_the_configured_tests_run_when_none_is_named(root: Path) -> None:
    assert chosen(root, "-q") == ("-q", "tests")
    assert chosen(root, "-q", "sub") == ("-q", "sub")
    assert chosen(root, "tests/test_a.py::test_b[x y]") == ("tests/test_a.py::test_b[x y]",)


@pytest.mark.parametrize("args", [("-k", "tests"), ("--ignore", "sub"), ("-m", "sub"), ("-p", "no:sub")])
def test_an_options_value_names_no_tests(root: Path, args: tuple[str, ...]) -> None:
    assert chosen(root, *args) == (*args, "tests")


def test_paths_are_seen_from_where_they_were_typed(root: Path) -> None:
    assert chosen(root, "test_b.py::test_it", folder="sub") == ("sub/test_b.py::test_it",)
    assert chosen(root, "../tests", folder="sub") == ("tests",)


def test_a_folder_of_tests_that_is_not_there_is_not_made_up(root: Path) -> None:
    (root / "tests" / "test_a.py").unlink()
    (root / "tests").rmdir()
    assert chosen(root, "-q") == ("-q",)


@pytest.mark.parametrize("name", ["pyproject.toml", "pytest.ini"])
def test_pytests_own_testpaths_stand(root: Path, name: str) -> None:
    head = {"pyproject.toml": "[tool.sealtape]\n[tool.pytest.ini_options]\n", "pytest.ini": "[pytest]\n"}[name]
    (root / name).write_text(f'{head}testpaths = ["sub"]\n')
    assert chosen(root, "-q") == ("-q",)


def test_what_only_tells_runs_no_tests() -> None:
    assert only_tells(["--version"])
    assert not only_tells(["-k", "version"])
