"""The commands, as lists of small steps."""

from __future__ import annotations

import json
import os
import secrets as randomness
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sealtape import config
from sealtape.broker.door import Door
from sealtape.broker.grants import prepare_grants
from sealtape.broker.intake import printable, take_in
from sealtape.broker.wire import BrokerConfig, KeyedGrant, Why
from sealtape.cassette.store import write_atomically
from sealtape.config import LOOPBACK, GuestLink, Mode, Settings
from sealtape.errors import (
    EXIT_FAILED,
    EXIT_NO_ENGINE,
    EXIT_NOT_SEALED,
    EXIT_REFUSED,
    ConfigError,
    EngineError,
    RefusedError,
    UsageError,
)
from sealtape.guest.session import OWED
from sealtape.placeholder import placeholder_for
from sealtape.sandbox.engine import Engine, Process, find_engine
from sealtape.sandbox.launch import Outcome, launch
from sealtape.sandbox.policy import OUT, RESULTS, Mount, make_policy
from sealtape.sandbox.results import bring_back, placed_results, prepare_out
from sealtape.sandbox.rundir import run_folder
from sealtape.sandbox.verdict import Verdict
from sealtape.screen import Screen
from sealtape.selection import only_tells, pytest_arguments

REPORT = "report.json"
OUTBOX = "outbox"
DOOR = "door.sock"
MAX_REPORT = 64 * 1024 * 1024  # bytes; the guest wrote it


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the command line asks of a run.

    `engine` is None where the settings are to decide. `report` is where the results are to be
    written, `out` the folder that gets what the tests wrote, `folder` where the command was typed.
    """

    settings: Settings
    screen: Screen
    engine: str | None = None
    pytest_args: tuple[str, ...] = ()
    report: Path | None = None
    out: Path | None = None
    folder: Path = Path()


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a record session may do. `missing`: ask only what has no recording."""

    max_calls: int | None = None
    missing: bool = False
    keep_failures: bool = False
    allow_ci: bool = False


def replay(run: Run) -> int:
    """Runs the tests sealed, every model call answered from recordings. Returns the exit code."""
    run = _with_results(run)
    engine = _engine(run)
    keys = _real_keys(run.settings)
    placeholders = {name: placeholder_for(name, fresh=False) for name in run.settings.key_variables()}
    with _out_folder() as out:
        link = GuestLink(engine=engine.name, report=Path(OUT, REPORT))
        outcome = _launch(run, engine, Mode.REPLAY, link, out, placeholders, keys)
        _bring_results(run, outcome, out)
        return _exit_code(run, outcome, out)


def record(run: Run, budget: Budget) -> int:
    """Runs the tests in the same sandbox, with the broker as the one way out. Returns the exit code."""
    run = _with_results(run)
    settings = run.settings
    _refuse_in_ci(budget)
    grants = _grants(settings)
    _check_writable(settings.cassettes)
    engine = _engine(run, broker=True)
    token = randomness.token_urlsafe(32)
    fresh = {keyed.grant.key_env: keyed.placeholder for keyed in grants if keyed.grant.key_env}
    placeholders = {name: fresh.get(name) or placeholder_for(name, fresh=True) for name in settings.key_variables()}
    real = {keyed.grant.key_env: keyed.key for keyed in grants if keyed.grant.key_env and keyed.key}
    with _out_folder() as out, _open_door(run, engine, grants, token, budget) as (door, mount):
        (out / OUTBOX).mkdir()
        # The guest can have another uid. The folder above is closed to everybody but the two.
        (out / OUTBOX).chmod(0o777)
        link = GuestLink(
            engine=engine.name,
            report=Path(OUT, REPORT),
            outbox=Path(OUT, OUTBOX),
            door=Path(mount.target, DOOR),
            token=token,
            missing_only=budget.missing,
        )
        secrets = {**_real_keys(settings), **real}
        outcome = _launch(run, engine, Mode.RECORD, link, out, placeholders, secrets, (mount,))
        door.close()
        # First of all: what was asked is paid for.
        taken = take_in(
            out / OUTBOX,
            settings.cassettes,
            secrets={**secrets, **{f"placeholder of {name}": value for name, value in fresh.items() if value}},
            rules=settings.redact,
            keep_failures=budget.keep_failures,
        )
        run.screen.section("record session", [*door.summary(), *taken.summary(settings.root)])
        _bring_results(run, outcome, out)
        code = _exit_code(run, outcome, out)
        withheld = any(entry["kind"] == "withheld" for entry in _owed(out))
    spent = any(call.refused == Why.BUDGET for call in door.calls)
    refused = EXIT_REFUSED if spent or withheld or taken.refused else 0
    return code if code == EXIT_NOT_SEALED else refused or code


def build(run: Run) -> int:
    """Builds the images that replay and record need, where the engine needs any."""
    engine = _engine(run, broker=True)
    run.screen.say(f"{engine.name} is ready")
    return 0


def doctor(run: Run, *, as_json: bool) -> int:
    """Says which engines are usable here, and what the verdict on each is. Returns the exit code."""
    names = _engines(run)
    reasons: dict[str, str] = {}
    verdicts: dict[str, Verdict] = {}
    for name in names:
        try:
            verdicts[name] = _examine(run, find_engine(name), quiet=as_json)
        except (EngineError, ConfigError) as error:
            reasons[name] = str(error)
    if as_json:
        engines = {
            name: {"usable": name in verdicts, "reason": reasons.get(name)}
            | (verdicts[name].to_json() if name in verdicts else {"sealed": None, "checks": []})
            for name in names
        }
        print(json.dumps({"version": 1, "engines": engines}, indent=2, ensure_ascii=False))
    else:
        for name in names:
            run.screen.diagnosis(name, verdicts.get(name), reasons.get(name))
    if not verdicts:
        return EXIT_NO_ENGINE
    return 0 if all(verdict.sealed for verdict in verdicts.values()) else EXIT_NOT_SEALED


def attack(run: Run, *, as_json: bool) -> int:
    """Tries every known way out of each engine's sandbox, and on this machine as the control. Returns the exit code."""
    # Only this command needs it; the others are to start quickly.
    from sealtape.sandbox.attacking import Score, attack_host, attack_sandbox, prepared, scores

    results: dict[str, list[Score]] = {}
    reasons: dict[str, str] = {}
    for name in _engines(run):
        try:
            engine = find_engine(name)
            with run.screen.working(f"attacking {name}") as progress:
                # Before the bait is laid out, which has a proxy that leads nowhere.
                engine.prepare(run.settings, progress)
                with prepared() as (project, out, bait):
                    inside = attack_sandbox(engine, project, out, bait)
                    results[name] = scores(inside, attack_host(project, out, bait))
        except EngineError as error:
            reasons[name] = str(error)
    if as_json:
        engines: dict[str, Any] = {name: {"reason": reason} for name, reason in reasons.items()}
        engines |= {name: {"groups": [vars(score) for score in parts]} for name, parts in results.items()}
        print(json.dumps({"version": 1, "engines": engines}, indent=2, ensure_ascii=False))
    else:
        for name in (*results, *reasons):
            run.screen.attacked(name, results.get(name), reasons.get(name))
    if not results:
        return EXIT_NO_ENGINE
    return EXIT_NOT_SEALED if any(part.open for parts in results.values() for part in parts) else 0


# -- steps ------------------------------------------------------------------------------------


def _with_results(run: Run) -> Run:
    """The run with a folder for its results, and pytest's arguments to match."""
    if run.report and not (run.report.absolute().parent.is_dir() and not run.report.is_dir()):
        raise UsageError(
            f"--report {run.report} cannot be a file", tip="nothing was run; name a file in a folder that is"
        )
    if run.out:
        prepare_out(run.out, run.settings.root)
    return replace(run, pytest_args=placed_results(run.pytest_args, run.out))


def _real_keys(settings: Settings) -> dict[str, str]:
    """The keys of this environment. A placeholder is none: a run that was started by a test has those."""
    keys = config.credentials(settings)
    return {name: value for name, value in keys.items() if value != placeholder_for(name, fresh=False)}


def _engines(run: Run) -> tuple[str, ...]:
    """The engines that a question about engines is about."""
    wanted = run.engine or run.settings.engine
    return ("docker", "bubblewrap") if wanted == "auto" else (wanted,)


def _engine(run: Run, *, broker: bool = False) -> Engine:
    """The engine, with what it needs made ready. Raises `EngineError`."""
    wanted = run.engine or run.settings.engine
    containerfile = run.settings.build.containerfile
    if wanted == "auto" and not (run.settings.root / containerfile).is_file():
        # Docker would need one; bubblewrap runs the environment that is here.
        run.screen.say(f"sealtape: no {containerfile} here, so without Docker")
        wanted = "bubblewrap"
    engine = find_engine(wanted)
    with run.screen.working(f"preparing {engine.name}") as progress:
        engine.prepare(run.settings, progress, broker=broker)
    return engine


def _launch(
    run: Run,
    engine: Engine,
    mode: Mode,
    link: GuestLink,
    out: Path,
    placeholders: Mapping[str, str],
    secrets: Mapping[str, str],
    mounts: Sequence[Mount] = (),
) -> Outcome:
    settings = run.settings
    env = {
        **run.screen.environment(),
        **placeholders,
        "CASSETTE_MODE": str(mode),
        "CASSETTE_DIR": _inside(settings),
        "SEALTAPE_GUEST": link.to_json(),
    }
    policy = make_policy(
        settings,
        pytest_args=pytest_arguments(settings, run.pytest_args, run.folder),
        env=env,
        out=out,
        secrets=secrets,
        extra_mounts=mounts,
    )
    return launch(engine, policy, announce=run.screen.verdict, timeout=settings.timeout)


def _inside(settings: Settings) -> str:
    """The cassettes' folder relative to the project: of this machine's files the guest sees no others."""
    try:
        return str(settings.cassettes.resolve().relative_to(settings.root.resolve()))
    except ValueError as error:
        raise ConfigError(
            f"the cassettes lie outside of the project: {settings.cassettes}",
            tip="a sealed run sees the project only; choose a folder inside of it",
        ) from error


def _refuse_in_ci(budget: Budget) -> None:
    if config.in_ci() and not budget.allow_ci:
        raise RefusedError(
            "recording is refused here, because CI is set: a CI run replays what is in the repository",
            tip="record on your own machine and commit cassettes/, or give --allow-ci",
        )


def _grants(settings: Settings) -> tuple[KeyedGrant, ...]:
    if not settings.grants:
        raise ConfigError(
            "there is no grant, so the broker would refuse every call",
            tip='add to pyproject.toml: [tool.sealtape.grants.openai] preset = "openai"',
        )
    return prepare_grants(settings, os.environ)


def _check_writable(folder: Path) -> None:
    """Before the first call is paid for: whether its recording could be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", tip="nothing was asked yet") from error


@contextmanager
def _open_door(
    run: Run, engine: Engine, grants: Sequence[KeyedGrant], token: str, budget: Budget
) -> Iterator[tuple[Door, Mount]]:
    """The broker, running, for as long as the tests do."""
    outward = run.settings.outward
    hosts = [urlsplit(origin).hostname for keyed in grants for origin in keyed.grant.origins]
    audit = run.settings.root / ".sealtape" / "audit.jsonl"
    audit.parent.mkdir(exist_ok=True)
    (audit.parent / ".gitignore").write_text("*\n")  # a log of this machine, not of the project
    with engine.open_door(["-m", "sealtape.broker"], host_loopback=bool(LOOPBACK.intersection(hosts))) as opened:
        process, mount, folder = opened
        door = Door(send=process.send, lines=_lines(process), close=process.close_input, audit=audit)
        door.open(
            BrokerConfig(
                socket=str(Path(folder, DOOR)),
                token=token,
                grants=tuple(grants),
                max_calls=budget.max_calls,
                ca=outward.ca_bundle.read_text() if outward.ca_bundle else None,
                proxy=outward.proxy,
            )
        )
        try:
            yield door, mount
        finally:
            door.close()


def _lines(process: Process) -> Iterator[bytes]:
    """A process's output in lines, its errors among them."""
    rest = {"out": b"", "err": b""}
    for stream, data in process.output():
        *whole, rest[stream] = (rest[stream] + data).split(b"\n")
        yield from whole
    yield from filter(None, rest.values())


@contextmanager
def _out_folder() -> Iterator[Path]:
    """Where the guest writes its results, outside of the project."""
    with run_folder() as folder:
        results = folder / "out" / Path(RESULTS).name
        results.mkdir(parents=True)
        # The guest can have another uid. The folder above is closed to everybody but the two.
        results.chmod(0o777)
        yield results.parent


def _bring_results(run: Run, outcome: Outcome, out: Path) -> None:
    if run.out:
        run.screen.results(run.out, bring_back(out / Path(RESULTS).name, run.out, reserved=[REPORT]))
    reports = [path for path in (run.report, run.out and run.out / REPORT) if path]
    if not reports:
        return
    document: dict[str, Any] = {"version": 1, **_guests_report(out / REPORT), "verdict": outcome.verdict.to_json()}
    for path in reports:
        write_atomically(path.absolute(), json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")


def _exit_code(run: Run, outcome: Outcome, out: Path) -> int:
    """The exit code of pytest, if there is reason to believe it.

    A test can end the process, and an option can switch the plugin off; both look like success.
    And what a forked child, a late thread or an exit handler asked in vain, no test fails for.
    """
    if outcome.exit_code != 0 or only_tells(run.pytest_args):
        return outcome.exit_code
    if not _guests_report(out / REPORT):
        run.screen.say(
            "sealtape: pytest ended without a report, so this run proves nothing\n"
            "  a test ended the process (os._exit), or the plugin was switched off (-p no:sealtape)"
        )
        return EXIT_FAILED
    owed = _owed(out)
    for entry in owed:
        where = entry["test"] or "outside of a test"
        run.screen.say(f"sealtape: {entry['kind']}, and no test failed for it: {entry['title']} ({where})")
    return EXIT_FAILED if owed else 0


def _owed(out: Path) -> list[dict[str, str]]:
    """What stayed unanswered in the guest, whoever asked."""
    entries = []
    for line in _guests_text(out / OWED).splitlines():
        try:
            entry = json.loads(line)
            entries.append({name: printable(str(entry[name])) for name in ("kind", "title", "test")})
        except (ValueError, TypeError, KeyError):
            entries.append({"kind": "missed", "title": "unreadable", "test": ""})
    return entries


def _guests_report(path: Path) -> dict[str, Any]:
    """What the guest reported, or nothing if it did not come to that."""
    try:
        document = json.loads(_guests_text(path))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _guests_text(path: Path) -> str:
    """A file that the guest wrote, or nothing where it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_REPORT).decode("utf-8", "replace")


def _examine(run: Run, engine: Engine, *, quiet: bool) -> Verdict:
    """The verdict on an engine: a guest that is probed and then has nothing to do."""
    with run.screen.working(f"examining {engine.name}") as progress:
        engine.prepare(run.settings, (lambda _: None) if quiet else progress)
        with _out_folder() as out:
            secrets = _real_keys(run.settings)
            policy = make_policy(run.settings, pytest_args=(), env={}, out=out, secrets=secrets)
            idle = replace(policy, command=("-c", ""))
            return launch(engine, idle, announce=lambda _: None, timeout=run.settings.timeout).verdict
