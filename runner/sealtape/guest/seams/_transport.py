"""What httpx and httpx2 have in common: a transport takes a request and gives a response.

The seam is in the transports that open connections. Those that do not (ASGI, WSGI, mocks)
are no way out and are left alone; custom ones that wrap these are caught below them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any, NoReturn

from sealtape.cassette import deck as decks
from sealtape.cassette.deck import Deck, Recording
from sealtape.cassette.model import Answer, Failure, Question, Take
from sealtape.config import Mode
from sealtape.guest import door as doors
from sealtape.guest.door import Door

# A failure by its name here, and the library's exception for it.
EXCEPTIONS: Mapping[str, str] = {
    "connect_error": "ConnectError",
    "connect_timeout": "ConnectTimeout",
    "pool_timeout": "PoolTimeout",
    "protocol_error": "RemoteProtocolError",
    "proxy_error": "ProxyError",
    "read_error": "ReadError",
    "read_timeout": "ReadTimeout",
    "write_error": "WriteError",
    "write_timeout": "WriteTimeout",
}
_KINDS = {exception: kind for kind, exception in EXCEPTIONS.items()}


class Seam:
    """The seam in `lib`: the module httpx or httpx2."""

    def __init__(self, lib: ModuleType) -> None:
        self.lib: Any = lib
        self.played, self.taped = _streams(self)

    def place(self) -> None:
        """Patches the library's two connecting transports."""
        send = self.lib.HTTPTransport.handle_request
        send_async = self.lib.AsyncHTTPTransport.handle_async_request

        @wraps(send)
        def handle_request(transport: Any, request: Any) -> Any:
            deck = decks.current()
            if deck is None or _is_faked(transport, "handle_request", "close"):
                return send(transport, request)
            if (route := self.route(deck, request)) == "pass":
                with self.unheard(deck, request):
                    return send(transport, request)
            if route == "ignore":
                return self.response(deck.ignored(_title(request)), request)
            request.read()
            question = self.question(deck, request)
            asked = deck.answer(question)
            if not isinstance(asked, Recording):
                return self.response(asked, request, partial(deck.ends_here, question))
            door = doors.current()
            with self.failing(asked):
                if door is None:
                    return self.tape(send(transport, self.outgoing(request)), asked)
                way = self.lib.HTTPTransport(uds=str(door.socket))
                response = send(way, self.outgoing(request, door, asked))
                if doors.answered_by(_text(response.headers)) == "live":
                    return self.tape(response, asked, way)
                response.read()
                way.close()
                return self.declined(response, request, asked)

        @wraps(send_async)
        async def handle_async_request(transport: Any, request: Any) -> Any:
            deck = decks.current()
            if deck is None or _is_faked(transport, "handle_async_request", "aclose"):
                return await send_async(transport, request)
            if (route := self.route(deck, request)) == "pass":
                with self.unheard(deck, request):
                    return await send_async(transport, request)
            if route == "ignore":
                return self.response(deck.ignored(_title(request)), request)
            await request.aread()
            question = self.question(deck, request)
            asked = deck.answer(question)
            if not isinstance(asked, Recording):
                return self.response(asked, request, partial(deck.ends_here, question))
            door = doors.current()
            with self.failing(asked):
                if door is None:
                    return self.tape(await send_async(transport, self.outgoing(request)), asked)
                way = self.lib.AsyncHTTPTransport(uds=str(door.socket))
                response = await send_async(way, self.outgoing(request, door, asked))
                if doors.answered_by(_text(response.headers)) == "live":
                    return self.tape(response, asked, way)
                await response.aread()
                await way.aclose()
                return self.declined(response, request, asked)

        self.lib.HTTPTransport.handle_request = handle_request
        self.lib.AsyncHTTPTransport.handle_async_request = handle_async_request
        self.share_tls_contexts(send.__globals__)

    def share_tls_contexts(self, transports: dict[str, Any]) -> None:
        """In replay all transports get one default TLS context. Each costs 10 to 100 ms, and no call is made.

        `transports`: the names of the module in which the library makes its transports.
        """
        create = transports.get("create_ssl_context")
        if create is None:  # made elsewhere in this version: slower, and no less right
            return
        shared = cache(create)

        @wraps(create)
        def create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:  # noqa: FBT001, FBT002
            deck = decks.current()
            if deck is not None and deck.mode is Mode.REPLAY and verify is True and cert is None:
                return shared(verify=True, cert=None, trust_env=trust_env)
            return create(verify=verify, cert=cert, trust_env=trust_env)

        transports["create_ssl_context"] = create_ssl_context

    def route(self, deck: Deck, request: Any) -> str:
        return deck.route(request.url.scheme, request.url.host, request.url.port)

    def question(self, deck: Deck, request: Any) -> Question:
        return deck.http_question(request.method, str(request.url), _text(request.headers), request.content)

    @contextmanager
    def unheard(self, deck: Deck, request: Any) -> Iterator[None]:
        """Notes a passed-through call that finds nobody: in a sandbox, a host of the real loopback is not there."""
        try:
            yield
        except self.lib.ConnectError:
            deck.unheard(request.url.host, request.url.port)
            raise

    def response(self, take: Take, request: Any, ends_here: Callable[[], BaseException] | None = None) -> Any:
        """A take as the library's response, or as its exception, raised.

        `ends_here` makes what a reader gets who reads beyond the end of a partial recording.
        """
        answer = take.after if isinstance(take, Failure) else take
        beyond: Callable[[], BaseException] | None = None
        if isinstance(take, Failure):
            beyond = partial(self.exception, take, request)
            if answer is None:
                raise beyond()
        assert isinstance(answer, Answer), "an HTTP question has HTTP takes"
        if answer.partial and beyond is None:
            beyond = ends_here
        return self.lib.Response(
            answer.status,
            headers=_bytes(answer.headers),
            stream=self.played(answer.pieces(), beyond),
            extensions={
                "http_version": answer.http_version.encode("ascii"),
                "reason_phrase": answer.reason.encode("latin-1"),
            },
        )

    def exception(self, failure: Failure, request: Any) -> Exception:
        exception: Exception = getattr(self.lib, EXCEPTIONS[failure.kind])(failure.message, request=request)
        return exception

    def outgoing(self, request: Any, door: Door | None = None, recording: Recording | None = None) -> Any:
        """The request as it goes out: as it is, or through the broker's door.

        Compression is declined, so that recordings are readable and replay needs no decoder. The
        body has been read whole; it goes out with its length, not in the chunks it was to have.
        """
        dropped = ("accept-encoding", "transfer-encoding")
        headers = [(n, v) for n, v in _text(request.headers) if n.lower() not in dropped]
        headers.append(("accept-encoding", "identity"))
        url = request.url
        if door is not None and recording is not None:
            connect = request.extensions.get("timeout", {}).get("connect")
            headers += door.headers(str(url), test=recording.test, connect=connect)
            url = self.lib.URL("http://broker/call")
        return self.lib.Request(
            request.method, url, headers=_bytes(headers), content=request.content, extensions=request.extensions
        )

    def tape(self, response: Any, recording: Recording, way: Any = None) -> Any:
        """The live response, with its body going to the tape while the application reads it."""
        received = _text(response.headers)
        headers = doors.without_private(received)
        reason = doors.reason(received)
        extensions = dict(response.extensions)
        if reason is not None:
            extensions["reason_phrase"] = reason.encode("latin-1")
        recording.begin(
            Answer(
                status=response.status_code,
                headers=headers,
                reason=extensions.get("reason_phrase", b"").decode("latin-1"),
                http_version=extensions.get("http_version", b"HTTP/1.1").decode("ascii"),
            )
        )
        return self.lib.Response(
            response.status_code,
            headers=_bytes(headers),
            stream=self.taped(response.stream, recording, way),
            extensions=extensions,
        )

    def declined(self, response: Any, request: Any, recording: Recording) -> NoReturn:
        """Raises what the broker's own answer means."""
        answer = doors.declined(_text(response.headers), response.content)
        if answer.failure is None:
            raise recording.refuse(answer.message)
        raise self.exception(Failure(kind=answer.failure, message=answer.message), request)

    def failing(self, recording: Recording) -> _Failing:
        return _Failing(self, recording)


class _Failing:
    """Records the library's transport errors, and lets them pass."""

    def __init__(self, seam: Seam, recording: Recording) -> None:
        self._seam = seam
        self._recording = recording

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, self._seam.lib.TransportError):
            kind = next((_KINDS[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in _KINDS), None)
            if kind:  # the others say that the request itself is wrong; nothing was asked
                self._recording.fail(kind, str(error))


def _streams(seam: Seam) -> tuple[Any, Any]:
    """The library's two kinds of body: one that plays a take, one that is taped while it is read.

    Each serves synchronous and asynchronous responses; both bases come from the library.
    """
    bases = (seam.lib.SyncByteStream, seam.lib.AsyncByteStream)

    class Played(*bases):  # type: ignore[misc]
        def __init__(self, pieces: Sequence[bytes], beyond: Callable[[], BaseException] | None) -> None:
            self._pieces = pieces
            self._beyond = beyond

        def __iter__(self) -> Iterator[bytes]:
            yield from self._pieces
            if self._beyond:
                raise self._beyond()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self:
                yield piece

    class Taped(*bases):  # type: ignore[misc]
        def __init__(self, live: Any, recording: Recording, way: Any) -> None:
            self._live = live
            self._recording = recording
            self._way = way

        def __iter__(self) -> Iterator[bytes]:
            with seam.failing(self._recording):
                for chunk in self._live:
                    self._recording.chunk(chunk)
                    yield chunk
                self._recording.end()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            with seam.failing(self._recording):
                async for chunk in self._live:
                    self._recording.chunk(chunk)
                    yield chunk
                self._recording.end()

        def close(self) -> None:
            self._recording.end(partial=True)
            self._live.close()
            if self._way is not None:
                self._way.close()

        async def aclose(self) -> None:
            self._recording.end(partial=True)
            await self._live.aclose()
            if self._way is not None:
                await self._way.aclose()

    return Played, Taped


def _is_faked(transport: Any, method: str, untouched: str) -> bool:
    """Whether another tool answers below this transport: respx puts its own method into the connection pool.

    Told by where the two methods of the pool's class were written; a fake replaces only the first.
    """
    methods = vars(type(transport._pool))  # noqa: SLF001 -- what the fake itself replaces
    codes = [methods[name].__code__ for name in (method, untouched) if hasattr(methods.get(name), "__code__")]
    return len({code.co_filename for code in codes}) > 1


def _title(request: Any) -> str:
    return f"{request.method} {request.url.host}"


def _text(headers: Any) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.raw]


def _bytes(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as they go over the wire; given as text, the libraries take only ASCII."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
