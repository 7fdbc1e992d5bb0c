"""One sealed run: handshake, verdict, and then pytest's output and signals, passed through."""

from __future__ import annotations

import hmac
import json
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from types import FrameType
from typing import Any, Self

from sealtape.errors import EXIT_INTERRUPTED, EXIT_NOT_SEALED, EngineError
from sealtape.sandbox._canaries import Canaries, canaries
from sealtape.sandbox.engine import Chunk, Engine, Guest
from sealtape.sandbox.policy import Policy, placed
from sealtape.sandbox.verdict import Check, Verdict, probe_checks

# From the first Ctrl-C to the end of the guest: pytest's own summary, and slow fixtures.
_GRACE = 8.0
# From the start of the guest to its answer; a cold disk is slow, a guest that hangs is not waited for.
_HANDSHAKE = 60.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended: pytest's exit code, or 70 (not sealed) or 130 (interrupted, or out of time)."""

    exit_code: int
    verdict: Verdict


def launch(engine: Engine, policy: Policy, *, announce: Callable[[Verdict], None], timeout: float) -> Outcome:
    """Run pytest in a sandbox of `engine`, if the sandbox is sealed. Raises `EngineError`.

    `announce` gets the verdict before the first test; `timeout` is in seconds, for the whole run.
    The first Ctrl-C interrupts pytest, the second ends the guest; whatever happens, nothing is
    left behind.
    """
    engine.reap()
    with _Warden() as warden, canaries() as birds, engine.start(policy) as guest:
        checks = [*birds.controls(), *_project_check(policy), *guest.inspect()]
        if not all(check.ok for check in checks):
            return _not_sealed(engine, checks, announce)
        guest.begin()
        warden.guard(guest, _HANDSHAKE)
        output = guest.output()
        guest.send(json.dumps(_plan(policy, guest, birds)).encode() + b"\n")
        answer = _answer(output, warden)
        checks = [*_merged(checks, guest.inspect()), *probe_checks(answer["probes"])]
        verdict = Verdict(engine=engine.name, checks=tuple(checks))
        if not verdict.sealed:
            return _not_sealed(engine, checks, announce)
        _complain(answer)
        announce(verdict)
        if not warden.allow(timeout):
            raise KeyboardInterrupt  # asked for while the guest was probed; it would not have heard of it
        guest.send(b"go\n")
        guest.close_input()
        _pass_through(output)
        try:
            code = guest.wait(_GRACE)
        except TimeoutError as error:
            raise EngineError("the guest closed its output, and did not end", tip="run it again") from error
        return Outcome(exit_code=EXIT_INTERRUPTED if warden.reason else code, verdict=verdict)


def _not_sealed(engine: Engine, checks: list[Check], announce: Callable[[Verdict], None]) -> Outcome:
    verdict = Verdict(engine=engine.name, checks=tuple(checks))
    announce(verdict)
    return Outcome(exit_code=EXIT_NOT_SEALED, verdict=verdict)


def _plan(policy: Policy, guest: Guest, birds: Canaries) -> dict[str, Any]:
    salt = secrets.token_bytes(16)
    here = guest.workdir
    return {
        "command": policy.command,
        "project": here,
        "limits": guest.rlimits,
        "canaries": {"tcp": birds.tcp, "file": birds.file, "abstract": birds.abstract},
        "salt": salt.hex(),
        "secrets": [
            {
                "name": name,
                "length": len(value.encode()),
                "hmac": hmac.digest(salt, value.encode(), "sha256").hex(),
            }
            for name, value in policy.secrets.items()
        ],
        "mounts": guest.mounts,
        "required": sorted(guest.required),
        "covered": [placed(path, here) for path in policy.empty_files],
        "masks": [placed(path, here) for path in policy.empty_files],
        "door": policy.door,
        "uid": policy.uid,
        "gid": policy.gid,
    }


def _project_check(policy: Policy) -> list[Check]:
    """The project is mounted: a key in one of its files is a key in the guest."""
    if not policy.secrets:
        return []
    found = ", ".join(f"{name} in {path}" for path, name in policy.leaks[:5])
    check = Check(
        name="keys in the project",
        expected="none",
        found=found or "none",
        ok=not found,
        closes=f"adding {policy.leaks[0][0]!r} to mask in [tool.sealtape]" if found else "mask in [tool.sealtape]",
        layer="control",
    )
    return [check]


def _merged(before: list[Check], after: list[Check]) -> list[Check]:
    """Both inspections; the later one counts where both looked at the same thing."""
    return list({(check.layer, check.name): check for check in (*before, *after)}.values())


def _answer(output: Iterator[Chunk], warden: _Warden) -> dict[str, Any]:
    line, noise = b"", b""
    for stream, data in output:
        if stream == "err":
            noise += data
            continue
        line += data
        if b"\n" in line:
            break
    try:
        answer: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        if warden.reason:
            raise KeyboardInterrupt from None
        text = (line + noise).decode(errors="replace").strip() or "it ended without a word"
        raise EngineError(
            f"the guest did not start: {text}",
            tip="it needs Python 3.11 or newer, as `python` on the image's PATH",
        ) from None
    return answer


def _complain(answer: dict[str, Any]) -> None:
    """What keeps a sealed guest from running this project's tests, in one sentence."""
    if problem := answer["problem"]:
        raise EngineError(problem, tip="let others read it (chmod -R o+rX), or run sealtape as its owner")
    software, ours = answer["software"], version("sealtape")
    where = f"the guest's Python {software['python']} ({software['executable']})"
    if software["pytest"] is None:
        raise EngineError(f"{where} has no pytest", tip="install it in the image, or in this environment")
    if software["sealtape"] is None:
        raise EngineError(f"{where} has no sealtape", tip=f"install sealtape=={ours} there")
    if software["sealtape"] != ours:
        raise EngineError(
            f"{where} has sealtape {software['sealtape']}, the host has {ours}",
            tip=f"install sealtape=={ours} in both",
        )


def _pass_through(output: Iterator[Chunk]) -> None:
    for stream, data in output:
        sink = sys.stdout if stream == "out" else sys.stderr
        sink.flush()
        sink.buffer.write(data)
        sink.buffer.flush()


class _Warden:
    """Ends the guest when it must end: signals and time.

    Signal handlers only leave a note, in a queue that may be written to from a handler; a thread
    acts on it. So no engine call is ever made from inside a handler, in the middle of another.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._deadline = float("inf")
        self._before: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_error: object) -> None:
        self._notes.put("done")
        if self._thread:
            self._thread.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def guard(self, guest: Guest, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._thread = threading.Thread(target=self._watch, args=(guest,), daemon=True)
        self._thread.start()

    def allow(self, seconds: float) -> bool:
        """Give the guest its time, unless the end was asked for already."""
        if self.reason or not self._notes.empty():
            return False
        self._deadline = time.monotonic() + seconds
        self._notes.put("time")
        return True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._notes.put(signal.Signals(number).name)

    def _watch(self, guest: Guest) -> None:
        while True:
            try:
                note = self._notes.get(timeout=min(max(self._deadline - time.monotonic(), 0), threading.TIMEOUT_MAX))
            except queue.Empty:
                note = "out of time"
            if note == "done":
                return
            if note == "time":
                continue
            if self.reason:
                guest.kill()
                self._deadline = float("inf")
                continue
            self.reason = note
            self._deadline = time.monotonic() + _GRACE
            guest.interrupt()
