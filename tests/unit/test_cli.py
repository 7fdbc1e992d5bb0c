from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from sealtape import __version__, cli, runs
from sealtape.errors import RefusedError
from sealtape.screen import Screen


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("CASSETTE_MODE", "CASSETTE_DIR", "SEALTAPE_GUEST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What `main` hands on: it is thin, and this is all of it."""
    calls: list[tuple[str, Any]] = []

    def stand_in(command: str) -> Any:
        def start(*given: Any, **more: Any) -> int:
            calls.append((command, (*given, *more.values())))
            return 5

        return start

    for command in ("replay", "record", "build", "doctor"):
        monkeypatch.setattr(runs, command, stand_in(command))
    return calls


PYTEST_ARGS = [
    [],
    ["-k", "parse and not slow"],
    ["tests/test_a.py::test_b[x y]"],
    ["-n", "4"],
    ["--strict"],
    ["-x", "-p", "no:x"],
    ["-xvs", "--tb=short", "tests"],
    ["-kparse and not slow", "-m", "not slow"],
    ["--durations", "3", "tests/a.py", "--lf", "tests/b.py"],
    ["--rep", "x", "--eng", "y"],
    ["-k", "replay"],
    ["--deselect=a b", "-o", "addopts="],
    ["-1"],
    [""],
    ["--junitxml", "out put.xml"],
]


@pytest.mark.parametrize("args", PYTEST_ARGS)
@pytest.mark.parametrize("command", ["replay", "record"])
@pytest.mark.parametrize("marked", [False, True])
def test_what_is_not_ours_reaches_pytest_as_it_was_typed(
    started: list[tuple[str, Any]], command: str, args: list[str], *, marked: bool
) -> None:
    own = ["--report", "out.json", "--engine", "bubblewrap"]
    assert cli.main([command, *own, *(["--"] if marked else []), *args]) == 5
    ((called, (run, *_)),) = started
    assert called == command
    assert run.pytest_args == tuple(args)
    assert (run.engine, run.report) == ("bubblewrap", Path("out.json"))


def test_our_options_are_taken_wherever_they_stand(started: list[tuple[str, Any]]) -> None:
    cli.main(["record", "-x", "--max-calls", "10", "tests", "--missing", "-k", "a", "--keep-failures", "--allow-ci"])
    ((_, (run, budget)),) = started
    assert run.pytest_args == ("-x", "tests", "-k", "a")
    assert budget == runs.Budget(max_calls=10, missing=True, keep_failures=True, allow_ci=True)


def test_after_two_dashes_everything_is_pytests(started: list[tuple[str, Any]]) -> None:
    cli.main(["replay", "tests", "--", "--engine", "docker", "--", "--help"])
    ((_, (run,)),) = started
    assert run.pytest_args == ("tests", "--engine", "docker", "--", "--help")
    assert run.engine is None


def test_build_and_doctor(started: list[tuple[str, Any]]) -> None:
    assert cli.main(["build", "--engine", "docker"]) == 5
    assert cli.main(["doctor", "--json"]) == 5
    assert [(command, given[1:]) for command, given in started] == [("build", ()), ("doctor", (True,))]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND\n  sealtape --help\n"),
        (["play"], "argument COMMAND: invalid choice: 'play'"),
        (["--engine", "docker"], "COMMAND"),
        (["replay", "--engine", "podman"], "argument --engine: invalid choice: 'podman'"),
        (["replay", "--report"], "argument --report: expected one argument\n  sealtape replay --help\n"),
        (["record", "--max-calls", "ten"], "argument --max-calls: a number of calls is needed, found 'ten'"),
        (["record", "--max-calls", "-1"], "argument --max-calls:"),
        (["build", "-x"], "build takes no '-x'\n  sealtape build --help\n"),
        (["doctor", "tests"], "doctor takes no 'tests'"),
    ],
)
def test_a_wrong_command_line_ends_with_64_and_says_so(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], started: list[tuple[str, Any]]
) -> None:
    assert cli.main(argv) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sealtape: ")
    assert message in err
    assert "Traceback" not in err
    assert started == []


def test_a_wrong_setting_ends_with_64(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text("[tool.sealtape]\ntimeot = 3\n")
    assert cli.main(["replay"]) == 64
    assert capsys.readouterr().err == ("sealtape: [tool.sealtape] has no key 'timeot'\n  perhaps you meant 'timeout'\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RefusedError("CI is set", tip="give --allow-ci"), 77, "sealtape: CI is set\n  give --allow-ci\n"),
        (KeyboardInterrupt(), 130, "sealtape: interrupted\n"),
    ],
)
def test_errors_become_exit_codes_in_one_place(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr(runs, "replay", fail)
    assert cli.main(["replay"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "argv", [["--help"], ["replay", "--help"], ["record", "-h"], ["build", "-h"], ["doctor", "-h"]]
)
def test_help_works(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 0
    assert "usage: sealtape" in capsys.readouterr().out


def test_the_command_is_installed() -> None:
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="sealtape")
    assert command.load() is cli.main


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"sealtape {__version__}\n"


def test_the_screen_writes_to_standard_error_only(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    with screen.working("preparing") as step:
        step("image")
    screen.section("Recorded", ["one", "two"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "sealtape: image\n\nRecorded\n  one\n  two\n"
