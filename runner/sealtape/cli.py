"""The command line. Own options are taken; everything else goes to pytest as it was typed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sealtape import __version__, config
from sealtape.config import ENGINES
from sealtape.errors import EXIT_INTERRUPTED, SealtapeError, UsageError

EXIT_BROKEN_PIPE = 141  # as a shell reports a process that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: pytest's own, or one of `sealtape.errors`."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except SealtapeError as error:
        print(f"sealtape: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has seen enough (`| head`). Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        print("sealtape: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    own, for_pytest = _split(argv)
    options, unknown = _parser().parse_known_args(own)
    for_pytest = (*unknown, *for_pytest)
    if for_pytest and options.command not in ("replay", "record"):
        raise UsageError(f"{options.command} takes no {for_pytest[0]!r}", tip=f"sealtape {options.command} --help")
    # Imported here: `--help` needs none of it.
    from sealtape import runs
    from sealtape.screen import Screen

    run = runs.Run(
        settings=config.load(Path.cwd()),
        screen=Screen(),
        engine=options.engine,
        pytest_args=for_pytest,
        report=getattr(options, "report", None),
        out=getattr(options, "out", None),
        folder=Path.cwd(),
    )
    match options.command:
        case "replay":
            return runs.replay(run)
        case "record":
            budget = runs.Budget(
                max_calls=options.max_calls,
                missing=options.missing,
                keep_failures=options.keep_failures,
                allow_ci=options.allow_ci,
            )
            return runs.record(run, budget)
        case "build":
            return runs.build(run)
        case _ if options.attack:
            return runs.attack(run, as_json=options.json)
        case _:
            return runs.doctor(run, as_json=options.json)


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before the first `--`, and what stands after it."""
    if "--" not in argv:
        return list(argv), ()
    at = list(argv).index("--")
    return list(argv[:at]), tuple(argv[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sealtape", description="Model calls, recorded once and replayed without a network.")
    parser.add_argument("--version", action="version", version=f"sealtape {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    replay = commands.add_parser("replay", help="run the tests sealed: no network, no key, recordings only")
    record = commands.add_parser("record", help="run the tests with the broker as the one way out, and record")
    build = commands.add_parser("build", help="build the images that the Docker engine needs")
    doctor = commands.add_parser("doctor", help="say which engines work here, and how well they seal")
    for command in (replay, record, build, doctor):
        command.add_argument("--engine", choices=ENGINES, help="what makes the sandbox")
    for command in (replay, record):
        command.epilog = "Everything else goes to pytest; what stands after -- goes to pytest in any case."
        command.add_argument("--report", metavar="FILE", type=Path, help="write verdict and calls to FILE, as JSON")
        command.add_argument("--out", metavar="DIR", type=Path, help=_OUT_HELP)
    record.add_argument("--max-calls", metavar="N", type=_count, help="refuse every live call after the first N")
    record.add_argument("--missing", action="store_true", help="ask only what has no recording yet")
    record.add_argument("--keep-failures", action="store_true", help="take in answers like 429 and 500 too")
    record.add_argument("--allow-ci", action="store_true", help="record although CI is set")
    doctor.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    doctor.add_argument("--attack", action="store_true", help="try every known way out of each engine's sandbox")
    return parser


_OUT_HELP = (
    "bring back to DIR what the tests wrote to $SEALTAPE_OUT, coverage data, the files of --junitxml and --cov-report "
    "(relative paths are relative to DIR), and the report as report.json"
)


class _Parser(argparse.ArgumentParser):
    """argparse without abbreviations, which would take pytest's options for ours, and with our exit code."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{**options, "allow_abbrev": False})  # type: ignore[arg-type]

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message, tip=f"{self.prog} --help")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of calls is needed, found {text!r}")
    return int(text)
