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
from sealtape.broker.intake import IntakeReport, take_in
from sealtape.broker.wire import BrokerConfig, KeyedGrant, Why
from sealtape.cassette.store import write_atomically
from sealtape.config import LOOPBACK, GuestLink, Mode, Settings
from sealtape.errors import (
    EXIT_NO_ENGINE,
    EXIT_NOT_SEALED,
    EXIT_REFUSED,
    ConfigError,
    EngineError,
    RefusedError,
    UsageError,
)
from sealtape.placeholder import placeholder_for
from sealtape.sandbox.engine import Engine, Process, find_engine
from sealtape.sandbox.launch import Outcome, launch
from sealtape.sandbox.policy import OUT, Mount, make_policy
from sealtape.sandbox.verdict import Verdict
from sealtape.screen import Screen

REPORT = "report.json"
OUTBOX = "outbox"
DOOR = "door.sock"
MAX_REPORT = 64 * 1024 * 1024  # bytes; the guest wrote it


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the command line asks of a run. `report`: where its results are to be written."""

    settings: Settings
    screen: Screen
    engine: str = "auto"
    pytest_args: tuple[str, ...] = ()
    report: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a record session may do. `missing`: ask only what has no recording."""

    max_calls: int | None = None
    missing: bool = False
    keep_failures: bool = False
    allow_ci: bool = False


def replay(run: Run) -> int:
    """Runs the tests sealed, every model call answered from recordings. Returns the exit code."""
    engine = _engine(run)
    keys = config.credentials(run.settings)
    placeholders = {name: placeholder_for(name, fresh=False) for name in run.settings.key_variables()}
    with _out_folder() as out:
        link = GuestLink(engine=engine.name, report=Path(OUT, REPORT))
        outcome = _launch(run, engine, Mode.REPLAY, link, out, placeholders, keys)
        _write_report(run, outcome, out)
    return outcome.exit_code


def record(run: Run, budget: Budget) -> int:
    """Runs the tests in the same sandbox, with the broker as the one way out. Returns the exit code."""
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
        secrets = {**config.credentials(settings), **real}
        outcome = _launch(run, engine, Mode.RECORD, link, out, placeholders, secrets, (mount,))
        door.close()
        _write_report(run, outcome, out)
        taken = take_in(
            out / OUTBOX,
            settings.cassettes,
            secrets={**secrets, **{f"placeholder of {name}": value for name, value in fresh.items() if value}},
            rules=settings.redact,
            keep_failures=budget.keep_failures,
        )
    _close_record(run, door, taken)
    spent = any(call.refused == Why.BUDGET for call in door.calls)
    refused = EXIT_REFUSED if spent or taken.refused else 0
    return outcome.exit_code if outcome.exit_code == EXIT_NOT_SEALED else refused or outcome.exit_code


def build(run: Run) -> int:
    """Builds the images that replay and record need, where the engine needs any."""
    engine = find_engine(run.engine)
    with run.screen.working(f"preparing {engine.name}") as progress:
        engine.prepare(run.settings, progress, broker=True)
    run.screen.say(f"{engine.name} is ready")
    return 0


def doctor(run: Run, *, as_json: bool) -> int:
    """Says which engines are usable here, and what the verdict on each is. Returns the exit code."""
    names = ("docker", "bubblewrap") if run.engine == "auto" else (run.engine,)
    reasons: dict[str, str] = {}
    verdicts: dict[str, Verdict] = {}
    for name in names:
        try:
            verdicts[name] = _examine(run, find_engine(name), quiet=as_json)
        except EngineError as error:
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


# -- steps ------------------------------------------------------------------------------------


def _engine(run: Run, *, broker: bool = False) -> Engine:
    wanted = run.engine if run.engine != "auto" else run.settings.engine
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
    policy = make_policy(settings, pytest_args=_arguments(run), env=env, out=out, secrets=secrets, extra_mounts=mounts)
    return launch(engine, policy, announce=run.screen.verdict, timeout=settings.timeout)


def _arguments(run: Run) -> tuple[str, ...]:
    """What pytest gets: the arguments given, and the configured tests where none of them names any."""
    root = run.settings.root
    named = any(
        not argument.startswith("-") and (root / argument.partition("::")[0]).exists() for argument in run.pytest_args
    )
    return run.pytest_args if named else (*run.pytest_args, *run.settings.tests)


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
    with tempfile.TemporaryDirectory(prefix="sealtape-") as folder:
        yield Path(folder)


def _write_report(run: Run, outcome: Outcome, out: Path) -> None:
    if run.report is None:
        return
    document: dict[str, Any] = {"version": 1, **_guests_report(out / REPORT), "verdict": outcome.verdict.to_json()}
    write_atomically(run.report.absolute(), json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")


def _guests_report(path: Path) -> dict[str, Any]:
    """What the guest reported, or nothing if it did not come to that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    with os.fdopen(descriptor, "rb") as file:
        try:
            document = json.loads(file.read(MAX_REPORT))
        except ValueError:
            return {}
    return document if isinstance(document, dict) else {}


def _close_record(run: Run, door: Door, taken: IntakeReport) -> None:
    run.screen.section("record session", [*door.summary(), *taken.summary(run.settings.root)])


def _examine(run: Run, engine: Engine, *, quiet: bool) -> Verdict:
    """The verdict on an engine: a guest that is probed and then has nothing to do."""
    with run.screen.working(f"examining {engine.name}") as progress:
        engine.prepare(run.settings, (lambda _: None) if quiet else progress)
        with _out_folder() as out:
            secrets = config.credentials(run.settings)
            policy = make_policy(run.settings, pytest_args=(), env={}, out=out, secrets=secrets)
            idle = replace(policy, command=("-c", ""))
            return launch(engine, idle, announce=lambda _: None, timeout=run.settings.timeout).verdict
