"""The attack catalogue: ways out of a sandbox, or at its key, as code that tries them. Standard library only.

Each attack is made twice: in the sandbox, where it must fail, and on the host, where it must work,
or its failure would prove nothing. `bait` says what there is to reach: addresses, files, a process,
each of which answers with the same random token.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

Bait = dict[str, Any]
GROUPS = (
    "network",
    "names",
    "unix sockets",
    "inherited descriptors",
    "kernel interfaces",
    "other processes",
    "files and mounts",
    "writing back",
    "environment",
    "Python",
)
_SECONDS = 10


class Attack(NamedTuple):
    """One way out. `run` returns what it got hold of; nothing, or an `OSError`, means that it was blocked.

    `when` is the moment of a test session at which it is made.
    """

    group: str
    name: str
    run: Callable[[Bait], object]
    when: str = "test"


CATALOGUE: list[Attack] = []


def attack(group: str, name: str, when: str = "test") -> Callable[[Callable[[Bait], object]], Callable[[Bait], object]]:
    """Enters a function into the catalogue."""

    def enter(run: Callable[[Bait], object]) -> Callable[[Bait], object]:
        CATALOGUE.append(Attack(group, name, run, when))
        return run

    return enter


class MissingToolError(Exception):
    """The attack could not be made: what it needs is not installed. That is no protection."""


def attempt(one: Attack, bait: Bait) -> dict[str, str]:
    """Makes an attack in a process of its own: `through`, `blocked`, or `broken` if it was no attempt at all."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os.close(reading)
            os.write(writing, json.dumps(_outcome(one, bait)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        # Not read until the end: a child of the attack can hold the pipe open.
        ready, _, _ = select.select([pipe], [], [], _SECONDS)
        text = os.read(pipe.fileno(), 65536) if ready else b""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not text:
        return {"outcome": "broken", "detail": f"no answer within {_SECONDS} s"}
    result: dict[str, str] = json.loads(text)
    return result


def _outcome(one: Attack, bait: Bait) -> dict[str, str]:
    try:
        got = one.run(bait)
    except OSError as error:
        return {"outcome": "blocked", "detail": str(error.strerror or error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        # pytest-socket's own exceptions are no OSError, and a test environment without it has none of them.
        blocked = any(kind.__module__ == "pytest_socket" for kind in type(error).__mro__)
        return {"outcome": "blocked" if blocked else "broken", "detail": f"{type(error).__name__}: {error}"}
    return {"outcome": "through" if got else "blocked", "detail": str(got or "nothing was reached")[:200]}


def heard(sock: socket.socket, bait: Bait) -> bool:
    """Whether the peer is the host's: it says the token."""
    data = b""
    while bait["token"].encode() not in data:
        part = sock.recv(4096)
        if not part:
            return False
        data += part
    return True


def patient(sock: socket.socket) -> socket.socket:
    sock.settimeout(1)  # everything to be reached is on this machine
    return sock
