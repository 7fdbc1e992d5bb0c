"""Sockets blocked in Python, from the first conftest to the end of the session.

pytest-socket raises at the line that connects. It knows one way to connect, and it is off
between tests; the audit hook here sees every way that leads through Python's socket module
(`_socket`, `connect_ex`, `sendto`, name look-ups, subclasses made before the guard), and it
keeps the list of attempts. In a sandbox the kernel has the last word; these two make it
understandable.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pytest_socket

# Addresses that mean this machine when they are connected to.
_HERE = ("0.0.0.0", "::")  # noqa: S104 -- compared with, never bound
_FAMILIES = frozenset({socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", -1)})


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One blocked way out: who tried it, when, and where it was to go."""

    test: str
    phase: str
    host: str
    port: int | None
    way: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class OutsideError(pytest_socket.SocketBlockedError):
    """A way out that was blocked by the audit hook."""

    def __init__(self, message: str) -> None:
        # Not the parent's own: it warns as well, and says less.
        RuntimeError.__init__(self, message)


class Guard:
    """Blocks what leaves this machine and notes each attempt.

    `hosts` may be connected to: names and addresses of this machine. `noted` is called with
    each attempt. `test` and `phase` say what runs now.
    """

    def __init__(self, hosts: Iterable[str], noted: Callable[[Attempt], None]) -> None:
        self.hosts = [*dict.fromkeys([*hosts, *_HERE])]
        self.noted = noted
        self.test = ""
        self.phase = "start"
        self._names = {*self.hosts, "", socket.gethostname()}
        self._class = socket.socket
        self._outer: Guard | None = None  # of the session that this one runs in
        self._original: Any = None
        self._guarded: Any = None

    def install(self) -> None:
        global _active, _hooked  # noqa: PLW0603 -- audit hooks cannot be removed; one asks for the active guard
        self._outer, _active = _active, self
        if not _hooked:
            _hooked = True
            sys.addaudithook(_audit)
        self._original = self._class.connect
        # pytest-socket would resolve these names; all of them mean this machine.
        known = {name: {name} for name in self.hosts}
        pytest_socket.socket_allow_hosts([*self.hosts, "127.0.0.0/8"], allow_unix_socket=True, resolution_cache=known)
        guarded: Any = self._class.connect

        def connect(sock: socket.socket, address: Any) -> None:
            try:
                guarded(sock, address)
            except pytest_socket.SocketConnectBlockedError as error:
                sock.close()
                host, port = _where(address)
                self.note(host, port, "connect")
                error.add_note(self.explanation())
                raise
            except UserWarning:
                # Where warnings are errors, pytest-socket's own warning comes before its error.
                sock.close()
                self.stop(*_where(address), "connect")

        self._guarded = connect
        self.renew()

    def renew(self) -> None:
        """Puts pytest-socket's guard back: the library takes it away before a test's fixtures are torn down."""
        if _active is self:  # a session within this one has its own
            self._class.connect = self._guarded  # type: ignore[method-assign]

    def remove(self) -> None:
        global _active  # noqa: PLW0603
        _active = self._outer
        self._class.connect = self._original  # type: ignore[method-assign]

    def note(self, host: str, port: int | None, way: str) -> None:
        self.noted(Attempt(test=self.test, phase=self.phase, host=host, port=port, way=way))

    def explanation(self) -> str:
        who = f"{self.test} ({self.phase})" if self.test else f"outside of a test ({self.phase})"
        return f"blocked by sealtape: {who} tried to leave this machine, and tests have no network"

    def permits(self, host: str) -> bool:
        if host.lower() in self._names:
            return True
        try:
            return ipaddress.ip_address(host.partition("%")[0]).is_loopback
        except ValueError:
            return False

    def check(self, event: str, args: tuple[Any, ...]) -> None:
        """Raises `OutsideError` for an audit event that leads out."""
        way = event.removeprefix("socket.")
        match event, args:
            case "socket.__new__", (_, int() as family, *_) if family not in {*_FAMILIES, -1}:
                self.stop(f"address family {family}", None, "socket")
            case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (sock, address)) if address is not None:
                if sock.family != socket.AF_UNIX:
                    host, port = _where(address)
                    if not self.permits(host):
                        if way == "connect":
                            # socket.create_connection() expects an OSError here, and would leave it open.
                            sock.close()
                        self.stop(host, port, way)
            case (("socket.getaddrinfo" | "socket.gethostbyname" | "socket.gethostbyaddr"), (host, *rest)):
                name = host.decode("ascii", "replace") if isinstance(host, bytes) else host or ""
                if not self.permits(name) and not _is_address(name, way):
                    port = rest[0] if rest and isinstance(rest[0], int) else None
                    self.stop(name, port, way)
            case "socket.getnameinfo", ((host, port, *_),):
                if not self.permits(host):
                    self.stop(host, port, way)

    def stop(self, host: str, port: int | None, way: str) -> None:
        self.note(host, port, way)
        target = host if port is None else f"{host}:{port}"
        raise OutsideError(f"{way} to {target} was blocked\n{self.explanation()}")


_active: Guard | None = None
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    # Called for every import, open and compile too: the way out of here has to be short.
    if event.startswith("socket.") and _active is not None:
        _active.check(event, args)


def _where(address: Any) -> tuple[str, int | None]:
    if isinstance(address, tuple) and len(address) >= 2:  # noqa: PLR2004 -- (host, port, …)
        host, port = address[0], address[1]
        return str(host), port if isinstance(port, int) else None
    return str(address), None


def _is_address(name: str, way: str) -> bool:
    """Whether a look-up needs no name server: an address, asked for forwards."""
    if way == "gethostbyaddr":
        return False
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
