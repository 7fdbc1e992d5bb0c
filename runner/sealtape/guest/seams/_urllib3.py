"""The seam in urllib3, and so in requests, botocore and whatever else sends through its pools.

It is where a pool makes one request on one connection: retries and redirects are above it, so
every hop is a question of its own. The connection is replaced by one that plays a take, or by
one that leads to the broker; all else stays urllib3's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from http.client import HTTPException, RemoteDisconnected
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, NoReturn

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
)
from urllib3.util import Timeout

from sealtape.cassette import deck as decks
from sealtape.cassette.deck import Deck, Recording
from sealtape.cassette.model import Answer, Failure, Take
from sealtape.guest import door as doors
from sealtape.guest.door import Door

Headers = list[tuple[str, str]]
# Makes what a reader gets who reads beyond the end of a recorded body.
Beyond = Callable[[], BaseException]

# What each failure is, at the place where urllib3 itself would raise it. Retries and the exceptions that
# callers see are made of these above.
EXCEPTIONS: Mapping[str, Callable[[Any, Any, str, str], Exception]] = {
    "connect_error": lambda _pool, conn, _url, message: NewConnectionError(conn, message),
    "connect_timeout": lambda _pool, conn, _url, message: ConnectTimeoutError(conn, message),
    "pool_timeout": lambda _pool, conn, _url, message: ConnectTimeoutError(conn, message),
    "protocol_error": lambda _pool, _conn, _url, message: RemoteDisconnected(message),
    "proxy_error": lambda _pool, _conn, _url, message: ProxyError(message, OSError(message)),
    "read_error": lambda _pool, _conn, _url, message: ConnectionResetError(message),
    "read_timeout": lambda pool, _conn, url, message: ReadTimeoutError(pool, url, message),
    "write_error": lambda _pool, _conn, _url, message: ConnectionAbortedError(message),
    "write_timeout": lambda pool, _conn, url, message: ReadTimeoutError(pool, url, message),
}
# The way back, most special first.
_KINDS: Sequence[tuple[type[BaseException], str]] = (
    (NameResolutionError, "connect_error"),
    (NewConnectionError, "connect_error"),
    (ConnectTimeoutError, "connect_timeout"),
    (ReadTimeoutError, "read_timeout"),
    (ProxyError, "proxy_error"),
    (TimeoutError, "read_timeout"),
    (ConnectionAbortedError, "write_error"),
    (BrokenPipeError, "write_error"),
    (ConnectionRefusedError, "connect_error"),
    (OSError, "read_error"),
    (HTTPException, "protocol_error"),
)


def place() -> None:
    """Patches the one method through which every request of every pool goes."""
    send: Any = HTTPConnectionPool._make_request  # noqa: SLF001 -- the public one above it retries and redirects

    @wraps(send)
    def _make_request(
        pool: Any, conn: Any, method: str, url: str, body: Any = None, headers: Any = None, **options: Any
    ) -> Any:
        deck = decks.current()
        if deck is None or (route := deck.route(pool.scheme, pool.host, pool.port)) == "pass":
            try:
                return send(pool, conn, method, url, body, headers, **options)
            except NewConnectionError:
                if deck is not None:
                    deck.unheard(pool.host, pool.port)
                raise
        if route == "ignore":
            stand_in = _Played(deck.ignored(f"{method} {pool.host}"), pool, url)
            return send(pool, stand_in, method, url, None, headers, **options)
        content = _content(body)
        sent = _listed(pool.headers if headers is None else headers)
        address = _address(pool, url)
        question = deck.http_question(method, address, sent, content)
        asked = deck.answer(question)
        if not isinstance(asked, Recording):
            stand_in = _Played(asked, pool, url, partial(deck.ends_here, question))
            return send(pool, stand_in, method, url, None, headers, **options)
        return _record(deck, asked, send, pool, conn, method, url, content, sent, options)

    patched: Any = _make_request
    HTTPConnectionPool._make_request = patched  # type: ignore[method-assign] # noqa: SLF001


def _record(
    deck: Deck,
    recording: Recording,
    send: Any,
    pool: Any,
    conn: Any,
    method: str,
    url: str,
    content: bytes,
    sent: Headers,
    options: dict[str, Any],
) -> Any:
    door = doors.current()
    # Compression is declined, so that recordings are readable and replay needs no decoder.
    headers = [(n, v) for n, v in sent if n.lower() not in ("accept-encoding", "transfer-encoding")]
    headers.append(("Accept-Encoding", "identity"))
    target = url
    if door is not None:
        headers += door.headers(_address(pool, url), test=deck.test, connect=_connect_seconds(options.get("timeout")))
        conn, target = _DoorConnection(door), "/call"
    read_now = options.get("preload_content", True)
    try:
        taped = {**options, "preload_content": False, "chunked": False}
        response = send(pool, conn, method, target, content or None, urllib3.HTTPHeaderDict(headers), **taped)
    except (HTTPError, OSError, HTTPException) as error:
        _failed(recording, error)
        raise
    received = _listed(response.headers)
    if door is not None and doors.answered_by(received) != "live":
        _declined(recording, pool, conn, url, received, response.read())
    reason = doors.reason(received) or response.reason or ""
    kept = doors.without_private(received)
    recording.begin(Answer(status=response.status, headers=kept, reason=reason, http_version=response.version_string))
    response.headers = urllib3.HTTPHeaderDict(kept)
    response.reason = reason
    live: Any = response._fp  # noqa: SLF001 -- where the library itself keeps the body's file
    if live.isclosed():  # HEAD, 204: there is no body that could be read to its end
        recording.end()
    response._fp = _Taped(live, recording)  # noqa: SLF001
    if read_now:
        response.read(decode_content=options.get("decode_content", True), cache_content=True)
    return response


def _declined(recording: Recording, pool: Any, conn: Any, url: str, received: Headers, body: bytes) -> NoReturn:
    answer = doors.declined(received, body)
    if answer.failure is None:
        raise recording.refuse(answer.message)
    recording.fail(answer.failure, answer.message)
    raise EXCEPTIONS[answer.failure](pool, conn, url, answer.message)


def _failed(recording: Recording, error: BaseException) -> None:
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), None)
    if kind is not None:
        recording.fail(kind, str(error))


class _StandIn:
    """A connection that is none. What `HTTPConnectionPool` wants of one before the answer."""

    timeout: Any = None
    proxy = None
    has_connected_to_proxy = False
    is_closed = True
    is_verified = True
    proxy_is_verified = None
    sock = None

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def request(self, *_: Any, **options: Any) -> None:
        self.options = options


class _Played(_StandIn):
    """A connection on which a take is the answer."""

    def __init__(self, take: Take, pool: Any, url: str, ends_here: Beyond | None = None) -> None:
        self.take = take
        self.ends_here = ends_here
        self.pool = pool
        self.url = url
        self.method = "GET"

    def request(self, method: str, *_: Any, **options: Any) -> None:
        self.method = method
        self.options = options

    def getresponse(self) -> urllib3.HTTPResponse:
        take = self.take
        answer = take.after if isinstance(take, Failure) else take
        beyond: Beyond | None = None
        if isinstance(take, Failure):
            beyond = partial(EXCEPTIONS[take.kind], self.pool, self, self.url, take.message)
            if answer is None:
                raise beyond()
        assert isinstance(answer, Answer), "an HTTP question has HTTP takes"
        if answer.partial and beyond is None:
            beyond = self.ends_here
        # Made with these headers only: of Transfer-Encoding urllib3 would look for frames, which are gone.
        encoding = [(n, v) for n, v in answer.headers if n.lower() in ("content-encoding", "content-length")]
        response = urllib3.HTTPResponse(
            body=_Body(answer.pieces(), beyond),
            headers=urllib3.HTTPHeaderDict(encoding),
            status=answer.status,
            reason=answer.reason,
            version=_VERSIONS.get(answer.http_version, 11),
            version_string=answer.http_version,
            preload_content=self.options["preload_content"],
            decode_content=self.options["decode_content"],
            enforce_content_length=self.options["enforce_content_length"],
            request_method=self.method,
            request_url=self.url,
        )
        response.headers = urllib3.HTTPHeaderDict(answer.headers)
        return response


_VERSIONS = {"HTTP/1.0": 10, "HTTP/1.1": 11, "HTTP/2": 20}


class _DoorConnection(HTTPConnection):
    """A connection to the broker's unix socket. What it leads to is checked by the broker."""

    is_verified = True

    def __init__(self, door: Door) -> None:
        super().__init__("broker")
        self._door = door

    def _new_conn(self) -> socket:
        connected = socket(AF_UNIX, SOCK_STREAM)
        connected.connect(str(self._door.socket))
        return connected


class _Body(io.RawIOBase):
    """The pieces of a recorded body as a file: one piece a read at most, and at the end perhaps a failure."""

    def __init__(self, pieces: Sequence[bytes], beyond: Beyond | None) -> None:
        self._pieces = [piece for piece in pieces if piece]
        self._beyond = beyond
        self._ended = False

    def readable(self) -> bool:
        return True

    def isclosed(self) -> bool:
        """Whether there is nothing more to read: what urllib3 asks of http.client's responses."""
        return self._ended

    def readinto(self, buffer: Any) -> int:
        data = self.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read1(self, size: int = -1) -> bytes:
        if not self._pieces:
            if self._beyond is not None:
                raise self._beyond()
            self._ended = True  # only now: a body that is shorter than announced is an error to urllib3
            return b""
        piece = self._pieces.pop(0)
        if 0 <= size < len(piece):
            self._pieces.insert(0, piece[size:])
            return piece[:size]
        return piece

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size >= 0:
            return self.read1(size)
        return b"".join(iter(self.read1, b""))


class _Taped:
    """A live body as a file, recorded while it is read."""

    def __init__(self, live: Any, recording: Recording) -> None:
        self._live = live
        self._recording = recording

    @property
    def closed(self) -> bool:
        return self.isclosed()

    def isclosed(self) -> bool:
        return bool(self._live.isclosed())

    def read(self, size: int | None = None) -> bytes:
        whole = size is None or size < 0
        return self._taken(self._live.read if whole else partial(self._live.read, size), whole=whole)

    def read1(self, size: int = -1) -> bytes:
        return self._taken(partial(self._live.read1, size), whole=False)

    def close(self) -> None:
        self._recording.end(partial=True)
        self._live.close()

    def flush(self) -> None: ...

    def _taken(self, read: Callable[[], bytes], *, whole: bool) -> bytes:
        try:
            data = read()
        except (OSError, HTTPException) as error:
            _failed(self._recording, error)
            raise
        if data:
            self._recording.chunk(data)
        # http.client closes a body of known length with its last byte.
        if whole or self.isclosed():
            self._recording.end()
        return data


def _address(pool: Any, url: str) -> str:
    """The absolute URL. Through a plain proxy it is asked for as such already, and that is the origin's."""
    if url.startswith(("http://", "https://")):
        return url
    host = f"[{pool.host}]" if ":" in pool.host else pool.host
    return f"{pool.scheme}://{host}:{pool.port}{url}" if pool.port else f"{pool.scheme}://{host}{url}"


def _content(body: Any) -> bytes:
    """A request's body, whole. Files and generators are read."""
    match body:
        case None:
            return b""
        case bytes() | bytearray() | memoryview():
            return bytes(body)
        case str():
            return body.encode()
    if hasattr(body, "read"):
        return _content(body.read())
    if isinstance(body, Iterable):
        return b"".join(_content(part) for part in body)
    raise TypeError(f"a request body of type {type(body).__name__} cannot be read")


def _listed(headers: Any) -> Headers:
    pairs = headers.iteritems() if hasattr(headers, "iteritems") else headers.items()
    return [(_text(name), _text(value)) for name, value in pairs]


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _connect_seconds(timeout: Any) -> float | None:
    """urllib3's time limit for a connection, in seconds; None where there is none."""
    limit = timeout.connect_timeout if isinstance(timeout, Timeout) else None
    return float(limit) if isinstance(limit, int | float) else None
