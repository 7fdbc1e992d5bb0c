"""A provider on loopback that does what a test tells it, and a real broker process in front of it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sealtape.broker.door import Door
from sealtape.broker.wire import BrokerConfig, KeyedGrant
from sealtape.config import Grant

REAL = "sk-the-real-key/with+odd=chars"
PLACEHOLDER = "sk-sealtape-placeholder"
TOKEN = "a-token-of-this-run"
# A loopback name: whatever this session does with model calls, its own servers are left alone.
CALL = "http://127.0.0.1/call"


@dataclass
class Asked:
    """A request as the provider got it. Header names as sent."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass
class Provider:
    """Answers every connection with `behave`, which writes raw bytes: it can break any rule."""

    port: int
    asked: list[Asked] = field(default_factory=list)
    behave: Callable[[socket.socket, Asked], None] = field(default=lambda conn, _: conn.sendall(answer(b"hello")))

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def answer(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _read(conn: socket.socket) -> Asked | None:
    with conn.makefile("rb") as stream:
        head = []
        while (line := stream.readline()) not in (b"", b"\r\n"):
            head.append(line.decode("latin-1").rstrip("\r\n"))
        if not head:
            return None
        headers = [tuple(line.split(": ", 1)) for line in head[1:]]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        return Asked(head[0], headers, stream.read(length))


@pytest.fixture
def provider() -> Iterator[Provider]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Provider(port=listener.getsockname()[1])

        def serve(conn: socket.socket) -> None:
            with conn, contextlib.suppress(ConnectionError):
                if asked := _read(conn):
                    made.asked.append(asked)
                    made.behave(conn, asked)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    conn, _ = listener.accept()
                    thread = threading.Thread(target=serve, args=(conn,))
                    thread.start()
                    threads.append(thread)

        threads: list[threading.Thread] = []
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield made
        # A listener that is only closed leaves accept() waiting.
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(5)
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()


@dataclass
class Running:
    """A broker process and its two ends: the host's door, and a client as the guest has one."""

    process: subprocess.Popen[bytes]
    door: Door
    socket: Path
    audit: Path
    client: httpx2.Client

    def ask(self, method: str, url: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx2.Response:
        return self.client.request(method, CALL, headers={"sealtape-url": url, **(headers or {})}, **more)

    def stream(self, url: str) -> AbstractContextManager[httpx2.Response]:
        return self.client.stream("GET", CALL, headers={"sealtape-url": url})


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with contextlib.ExitStack() as stack:
        # tmp_path is longer than a unix socket's path may be.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="door-")))
        audit = tmp_path / "audit.jsonl"

        def begin(*grants: KeyedGrant, **more: Any) -> Running:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "sealtape.broker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
            assert process.stdin is not None
            assert process.stdout is not None
            stack.callback(process.kill)

            def send(line: bytes) -> None:
                process.stdin.write(line)
                process.stdin.flush()

            door = Door(send=send, lines=process.stdout, close=process.stdin.close, audit=audit)
            path = folder / "door.sock"
            door.open(BrokerConfig(socket=str(path), token=TOKEN, grants=grants, **more))
            stack.callback(door.close)
            given = {"sealtape-token": TOKEN, "sealtape-test": "tests/test_a.py%3A%3Atest_%C3%BC"}
            client = httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), headers=given, timeout=10)
            return Running(process, door, path, audit, stack.enter_context(client))

        yield begin


@pytest.fixture
def grant(provider: Provider) -> KeyedGrant:
    """A grant for the provider on loopback, with a key."""
    return KeyedGrant(grant=Grant(name="acme", origins=(provider.origin,)), key=REAL, placeholder=PLACEHOLDER)


@pytest.fixture
def broker(start: Callable[..., Running], grant: KeyedGrant) -> Running:
    return start(grant)
