"""A server on loopback that does what its paths say, and what a session needs to record from it."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import sealtape

KEY = "sk-of-this-machine-0123456789"
JSON = "content-type: application/json\r\n"
SSE = "content-type: text/event-stream; charset=utf-8\r\n"


@dataclass(frozen=True)
class Asked:
    """A request as the server got it. Header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def answer(body: bytes = b"", head: str = "", status: str = "200 OK") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\n{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode("latin-1") + body
    )


def chunked(pieces: list[bytes], head: str = SSE, *, end: bool = True) -> Iterator[bytes]:
    yield f"HTTP/1.1 200 OK\r\n{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode()
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    if end:
        yield b"0\r\n\r\n"


def events(*documents: Any, named: bool = False, done: bool = False) -> list[bytes]:
    pieces = [
        (f"event: {document['type']}\n" if named else "").encode() + f"data: {json.dumps(document)}\n\n".encode()
        for document in documents
    ]
    return [*pieces, *([b"data: [DONE]\n\n"] if done else [])]


class Wire:
    """How answers are written, for tests that add routes of their own."""

    chunked = staticmethod(chunked)
    events = staticmethod(events)

    @staticmethod
    def json(document: Any, status: str = "200 OK") -> bytes:
        return answer(json.dumps(document).encode(), JSON, status)


Route = Callable[["Origin", Asked], "bytes | Iterator[bytes]"]


def _gzip(_: Origin, asked: Asked) -> bytes:
    if "gzip" not in asked.headers.get("accept-encoding", ""):
        return answer(b"plain text", "content-type: text/plain\r\n")
    return answer(gzip.compress(b"plain text"), "content-type: text/plain\r\ncontent-encoding: gzip\r\n")


def _slow(origin: Origin, _: Asked) -> bytes:
    origin.stopped.wait(30)
    return answer(b"late")


ROUTES: dict[str, Route] = {
    "/json": lambda *_: answer(b'{"n": 1, "text": "\xe2\x80\x99"}', JSON),
    "/bytes": lambda *_: answer(bytes(range(256)) * 8, "content-type: image/png\r\n"),
    "/events": lambda *_: chunked([b"data: on", b"e\n\ndata: \xf0\x9f", b"\x98\x80\n\n", b"data: [DONE]\n\n"]),
    "/many": lambda *_: chunked([f"data: {number}\n\n".encode() for number in range(50)]),
    "/gzip": _gzip,
    "/gzip-anyway": lambda *_: answer(
        gzip.compress(b"plain text", mtime=0), "content-type: text/plain\r\ncontent-encoding: gzip\r\n"
    ),
    "/redirect": lambda *_: answer(b"", "Location: /json\r\n", "302 Found"),
    "/cookies": lambda *_: answer(
        b"{}", f"{JSON}Set-Cookie: a=1; Path=/\r\nset-cookie: b=2; Path=/\r\nX-Two: 1\r\nX-Two: 2\r\n"
    ),
    "/empty": lambda *_: b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
    "/teapot": lambda *_: answer(b"{}", JSON, "418 I'm a teapot"),
    "/latin": lambda *_: answer(b"caf\xe9", "content-type: text/plain; charset=latin-1\r\nX-Name: caf\xe9\r\n"),
    "/slow": _slow,
    "/cut": lambda *_: answer(b"whole")[:-3],
    "/cut-stream": lambda *_: chunked([b"data: one\n\n", b"data: two\n\n"], end=False),
    "/garbage": lambda *_: b"this is not HTTP\r\n\r\n",
    "/echo": lambda _, asked: answer(asked.body, f"content-type: {asked.headers.get('content-type', 'x/y')}\r\n"),
    "/whoami": lambda _, asked: answer(f"you sent {asked.headers.get('authorization')}".encode()),
}


@dataclass
class Origin:
    """Answers one request for each connection, by its path."""

    listener: socket.socket
    routes: dict[str, Route] = field(default_factory=lambda: dict(ROUTES))
    asked: list[Asked] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return self._port

    def __post_init__(self) -> None:
        self._port: int = self.listener.getsockname()[1]

    def serve(self) -> None:
        thread = threading.Thread(target=self._accept)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """From now on nobody answers at this address."""
        if not self.stopped.is_set():
            self.stopped.set()
            # A listener that is only closed leaves accept() waiting.
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                thread = threading.Thread(target=self._answer, args=(connection,))
                thread.start()
                self._threads.append(thread)

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            asked = _read(connection)
            if asked is None:
                return
            self.asked.append(asked)
            given = self.routes[asked.path.partition("?")[0]](self, asked)
            if isinstance(given, bytes):
                head, split, _ = given.partition(b"\r\n\r\n")
                connection.sendall(given if asked.method != "HEAD" else head + split)
                return
            for piece in given:
                connection.sendall(piece)
                time.sleep(0.001)  # so that pieces arrive as pieces


def _read(connection: socket.socket) -> Asked | None:
    with connection.makefile("rb") as stream:
        line = stream.readline().decode("latin-1").split(" ")
        if len(line) < 2:
            return None
        headers = {}
        while (header := stream.readline().decode("latin-1").strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while (size := int(stream.readline(), 16)) > 0:
                body += stream.read(size)
                stream.readline()
        else:
            body = stream.read(int(headers.get("content-length", 0)))
    return Asked(line[0], line[1], headers, body)


@pytest.fixture
def origin() -> Iterator[Origin]:
    made = Origin(socket.create_server(("127.0.0.1", 0)))
    made.serve()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@dataclass
class Tape:
    """Records from the origin, and replays without it."""

    origin: Origin
    folder: Path
    key: str = KEY

    def session(self, mode: str, **more: Any) -> Any:
        grant = {"hosts": [self.origin.url], "key_env": "ACME_API_KEY"}
        return sealtape.session(mode, cassettes=self.folder, **{"grants": {"acme": grant}, **more})

    def twice(self, use: Callable[[], Any], **settings: Any) -> tuple[Any, Any]:
        """What `use` gives while it is recorded, and what it gives when nobody is there to answer."""
        with self.session("record", **settings):
            live = use()
        self.origin.stop()
        asked = len(self.origin.asked)
        with self.session("replay", **settings):
            played = use()
        assert len(self.origin.asked) == asked
        return live, played

    def documents(self) -> list[Any]:
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))]


@pytest.fixture
def tape(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tape:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACME_API_KEY", KEY)
    for name in ("CASSETTE_MODE", "CASSETTE_DIR", "SEALTAPE_GUEST"):
        monkeypatch.delenv(name, raising=False)
    return Tape(origin, tmp_path / "cassettes")
