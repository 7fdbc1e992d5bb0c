"""Things of the host that the guest must not reach, and the host's proof that it can reach them itself."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sealtape.sandbox.rundir import run_folder
from sealtape.sandbox.verdict import Check

_UNIX = socket.AF_UNIX


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Addresses of listening sockets. `abstract` is None where the host has no abstract sockets."""

    tcp: tuple[str, int]
    file: str
    abstract: str | None

    def controls(self) -> list[Check]:
        """Connect to each from the host: without that, "refused" inside would prove nothing."""
        checks = [
            _control("host's loopback", socket.AF_INET, self.tcp),
            _control("host's socket file", _UNIX, self.file),
        ]
        if self.abstract is not None:
            checks.append(_control("host's abstract socket", _UNIX, f"\0{self.abstract}"))
        return checks


@contextmanager
def canaries() -> Iterator[Canaries]:
    """Open the canaries for as long as the context lasts."""
    with ExitStack() as stack, run_folder() as folder:
        tcp = _listen(stack, socket.AF_INET, ("127.0.0.1", 0))
        path = str(folder / "canary")
        _listen(stack, _UNIX, path)
        abstract = f"sealtape-{secrets.token_hex(8)}" if sys.platform == "linux" else None
        if abstract:
            _listen(stack, _UNIX, f"\0{abstract}")
        yield Canaries(tcp=tcp.getsockname(), file=path, abstract=abstract)


def _listen(stack: ExitStack, family: int, address: Any) -> socket.socket:
    server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    server.bind(address)
    server.listen(8)
    return server


def _control(name: str, family: int, address: Any) -> Check:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(2)
            client.connect(address)
        found = "reached"
    except OSError as error:
        found = str(error)
    return Check(
        name=f"{name}, from outside",
        expected="reached",
        found=found,
        ok=found == "reached",
        closes="letting this machine reach its own loopback and sockets: without that the probes prove nothing",
        layer="control",
    )
