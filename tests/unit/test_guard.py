from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_socket

from sealtape.guest import guard as guards
from sealtape.guest.guard import Attempt, Guard, OutsideError

OUTSIDE = "192.0.2.1"  # TEST-NET-1: an address that belongs to nobody
BLOCKED = pytest_socket.SocketBlockedError, pytest_socket.SocketConnectBlockedError


@pytest.fixture
def attempts() -> list[Attempt]:
    return []


@pytest.fixture
def guard(attempts: list[Attempt]) -> Iterator[Guard]:
    made = Guard(["localhost", "127.0.0.1", "::1"], attempts.append)
    made.install()
    made.test, made.phase = "tests/test_a.py::test_b", "call"
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def port() -> Iterator[int]:
    """A listener on this machine, for what has to go on working."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def with_socket(kind: int, use: Callable[[socket.socket], Any]) -> Any:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(5)
        return use(sock)


def create_connection(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=5).close()


WAYS: dict[str, Callable[[str, int], Any]] = {
    "create_connection": create_connection,
    "connect": lambda host, port: with_socket(socket.SOCK_STREAM, lambda s: s.connect((host, port))),
    "connect_ex": lambda host, port: with_socket(socket.SOCK_STREAM, lambda s: s.connect_ex((host, port))),
    "connect udp": lambda host, port: with_socket(socket.SOCK_DGRAM, lambda s: s.connect((host, port))),
    "sendto": lambda host, port: with_socket(socket.SOCK_DGRAM, lambda s: s.sendto(b"x", (host, port))),
    "sendmsg": lambda host, port: with_socket(socket.SOCK_DGRAM, lambda s: s.sendmsg([b"x"], [], 0, (host, port))),
    "getnameinfo": lambda host, port: socket.getnameinfo((host, port), socket.NI_NUMERICSERV),
    "asyncio": lambda host, port: asyncio.run(open_and_close(host, port)),
}


async def open_and_close(host: str, port: int) -> None:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("way", WAYS)
def test_an_address_outside_is_blocked_and_one_of_this_machine_is_not(
    guard: Guard, attempts: list[Attempt], port: int, way: str
) -> None:
    assert WAYS[way]("127.0.0.1", port) is not pytest.fail
    assert attempts == []
    with pytest.raises(BLOCKED) as caught:
        WAYS[way](OUTSIDE, 443)
    (attempt,) = attempts
    assert (attempt.test, attempt.phase, attempt.host, attempt.port) == (guard.test, "call", OUTSIDE, 443)
    explained = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert OUTSIDE in explained
    assert "blocked by sealtape: tests/test_a.py::test_b (call) tried to leave this machine" in explained


NAMES: dict[str, Callable[[Any], Any]] = {
    "getaddrinfo": lambda name: socket.getaddrinfo(name, 443),
    "gethostbyname": socket.gethostbyname,
    "gethostbyname_ex": socket.gethostbyname_ex,
    "getfqdn": socket.getfqdn,
    "create_connection": lambda name: socket.create_connection((name, 443), timeout=5),
}


@pytest.mark.parametrize("way", NAMES)
@pytest.mark.usefixtures("guard")
def test_a_name_outside_is_not_looked_up(attempts: list[Attempt], way: str) -> None:
    with pytest.raises(OutsideError, match=r"api\.example\.com"):
        NAMES[way]("api.example.com")
    assert attempts[0].host == "api.example.com"


@pytest.mark.parametrize("name", ["localhost", b"localhost", "LocalHost", "127.0.0.1", None, socket.gethostname()])
@pytest.mark.usefixtures("guard")
def test_names_of_this_machine_are_looked_up(attempts: list[Attempt], name: Any) -> None:
    if name == socket.gethostname():
        with contextlib.suppress(socket.gaierror):  # a machine need not know its own name
            socket.getaddrinfo(name, 80)
    else:
        assert socket.getaddrinfo(name, 80)
    assert attempts == []


@pytest.mark.usefixtures("guard")
def test_an_address_needs_no_look_up(attempts: list[Attempt]) -> None:
    assert socket.getaddrinfo(OUTSIDE, 443)
    assert attempts == []


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET", "AF_ALG", "AF_CAN", "AF_TIPC"])
@pytest.mark.usefixtures("guard")
def test_families_that_lead_elsewhere_are_blocked(attempts: list[Attempt], family: str) -> None:
    number = getattr(socket, family)
    with pytest.raises(OutsideError, match=f"address family {int(number)}"):
        socket.socket(number, socket.SOCK_DGRAM)
    (attempt,) = attempts
    assert (attempt.host, attempt.port, attempt.way) == (f"address family {int(number)}", None, "socket")


@pytest.mark.usefixtures("guard")
def test_unix_sockets_and_socket_pairs_work(attempts: list[Attempt], tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = socket.socketpair()
    with one, two:
        one.sendall(b"x")
        assert two.recv(1) == b"x"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s.sock")
        server.listen()
        client.connect("s.sock")
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"
    assert attempts == []


@pytest.mark.usefixtures("guard")
def test_a_subclass_and_the_c_module_are_guarded_too(attempts: list[Attempt]) -> None:
    import _socket

    class Own(socket.socket):
        def connect(self, address: Any) -> None:
            _socket.socket.connect(self, address)

    with Own() as sock, pytest.raises(OutsideError):
        sock.connect((OUTSIDE, 443))
    raw = _socket.socket()
    with pytest.raises(OutsideError):
        raw.connect((OUTSIDE, 443))
    raw.close()
    assert len(attempts) == 2


@pytest.mark.usefixtures("guard")
def test_a_blocked_connection_leaves_no_open_socket(attempts: list[Attempt]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for address in ((OUTSIDE, 443), ("192.0.2.2", 80)):
            with pytest.raises(BLOCKED):
                socket.create_connection(address, timeout=5)
        with pytest.raises(BLOCKED):
            asyncio.run(open_and_close(OUTSIDE, 443))
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert len(attempts) == 3


@pytest.mark.usefixtures("guard")
def test_urllib_does_not_take_it_for_a_network_error(attempts: list[Attempt]) -> None:
    with pytest.raises(BLOCKED):
        urllib.request.urlopen(f"http://{OUTSIDE}/")
    assert not issubclass(OutsideError, OSError)
    assert not issubclass(OutsideError, urllib.error.URLError)
    assert len(attempts) == 1


def test_what_pytest_socket_opens_stays_shut(guard: Guard, attempts: list[Attempt]) -> None:
    pytest_socket.socket_allow_hosts([OUTSIDE], allow_unix_socket=True)
    pytest_socket.enable_socket()
    with pytest.raises(OutsideError):
        create_connection(OUTSIDE, 443)
    pytest_socket._remove_restrictions()
    with pytest.raises(OutsideError):
        create_connection(OUTSIDE, 443)
    guard.renew()
    with pytest.raises(BLOCKED):
        create_connection(OUTSIDE, 443)
    assert len(attempts) == 3


def test_guards_nest_and_the_outer_one_stays_when_the_inner_one_goes(guard: Guard, attempts: list[Attempt]) -> None:
    within: list[Attempt] = []
    inner = Guard(["127.0.0.1"], within.append)
    inner.install()
    with pytest.raises(BLOCKED):
        socket.getaddrinfo("api.example.com", 443)
    inner.remove()
    assert guards._active is guard
    assert (len(within), len(attempts)) == (1, 0)
    with pytest.raises(BLOCKED):
        socket.getaddrinfo("api.example.com", 443)
    assert len(attempts) == 1


def test_a_name_that_is_allowed_may_be_asked_for(attempts: list[Attempt]) -> None:
    made = Guard(["127.0.0.1", "db.internal.invalid"], attempts.append)
    assert made.permits("db.internal.invalid")
    assert made.permits("127.8.8.8")
    assert made.permits("::1%lo")
    assert not made.permits("db.internal")
    assert not made.permits(OUTSIDE)
    assert not made.permits("fe80::1%eth0")


def test_an_attempt_becomes_json() -> None:
    attempt = Attempt(test="t", phase="call", host="h", port=None, way="socket")
    assert attempt.to_json() == {"test": "t", "phase": "call", "host": "h", "port": None, "way": "socket"}


def test_outside_of_a_test_the_phase_is_named(guard: Guard) -> None:
    guard.test, guard.phase = "", "start"
    with pytest.raises(OutsideError, match=r"outside of a test \(start\) tried to leave"):
        socket.getaddrinfo("api.example.com", 443)
