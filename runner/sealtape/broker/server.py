"""The broker as an ASGI application: checks a call, makes it, and streams the answer back."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from sealtape.broker import wire
from sealtape.broker.credentials import Credentials, Headers
from sealtape.broker.rules import Target, admit, parse
from sealtape.broker.scrub import Scrubber, scrub
from sealtape.broker.upstream import TIMEOUTS, RawHeaders, Request, Response, Upstream
from sealtape.broker.usage import TokenCount
from sealtape.broker.wire import BrokerConfig, CallEvent, KeyedGrant, Refused, UpstreamError, Why

BODY_BYTES = 64 * 1024 * 1024
HEADER_BYTES = 256 * 1024
CALL_SECONDS = 1800.0

# Headers that speak about one connection, not about the message (RFC 9110, section 7.6.1).
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Answered by this server already, or made anew for the call.
_REPLACED = frozenset({"accept-encoding", "content-length", "expect", "host"})

_log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _GuestGoneError(Exception):
    """The guest closed its connection: it timed out, or ended."""


@dataclass
class _Call:
    """What is known so far about one call, for the log."""

    test: str = ""
    method: str = ""
    target: Target | None = None
    grant: str | None = None
    status: int | None = None
    bytes: int = 0
    count: TokenCount = field(default_factory=TokenCount)
    refused: Why | None = None
    failure: str | None = None
    closed: bool = False
    started: float = field(default_factory=time.monotonic)

    def event(self) -> CallEvent:
        return CallEvent(
            test=self.test,
            grant=self.grant,
            method=self.method,
            host=self.target.authority if self.target else "",
            # Decoded, so that no way of escaping hides a key from the scrubbing.
            path=unquote(self.target.path) if self.target else "",
            status=self.status,
            bytes=self.bytes,
            ms=round((time.monotonic() - self.started) * 1000),
            tokens=self.count.total(),
            refused=self.refused,
            failure=self.failure,
        )


class Broker:
    """The application. `report` gets one `CallEvent` as text for every call, refused or not."""

    def __init__(self, config: BrokerConfig, upstream: Upstream, report: Callable[[str], None]) -> None:
        self._config = config
        self._upstream = upstream
        self._report = report
        self._credentials = Credentials(config.grants)
        self._patterns = self._credentials.patterns
        self._calls = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = _Call(method=scope["method"])
        headers = [(name.decode("ascii"), value.decode("latin-1")) for name, value in scope["headers"]]
        try:
            await self._serve(call, headers, receive, send)
        except Refused as refused:
            call.refused = refused.why
            await self._say_no(call, send, refused.status, "refused", reason=refused.why, message=refused.message)
        except UpstreamError as error:
            call.failure = error.kind
            await self._say_no(call, send, HTTPStatus.BAD_GATEWAY, "failure", kind=error.kind, message=error.message)
        except _GuestGoneError:
            call.failure = "guest_gone"
        except Exception:
            call.failure = "broker_error"
            _log.exception("the broker could not carry out a call")
            raise
        finally:
            self._close(call)

    def _close(self, call: _Call) -> None:
        """Reports a call, once, before the guest can know its end: the host's log is never behind the guest."""
        if not call.closed:
            call.closed = True
            # A refused path may hold what it was refused for.
            self._report(scrub(call.event().to_line().encode(), self._patterns).decode())

    async def _serve(self, call: _Call, headers: Headers, receive: Receive, send: Send) -> None:
        ours = {name: value for name, value in headers if name.startswith(wire.OURS)}
        call.test = unquote(ours.get(wire.TEST, ""))
        if not hmac.compare_digest(ours.get(wire.TOKEN, "").encode(), self._config.token.encode()):
            raise Refused(Why.TOKEN, "The token is not this session's. Only the guest of this run may ask.")
        call.target = target = parse(ours.get(wire.URL, ""))
        keyed = admit(call.method, target, self._config.grants)
        call.grant = keyed.grant.name
        if any(name == "upgrade" for name, _ in headers):
            raise Refused(Why.BAD_REQUEST, "A connection that is upgraded (a websocket) cannot be recorded.")
        timeouts = _timeouts(ours.get(wire.TIMEOUT, "{}"))
        body = await _body(receive)
        request = Request(
            method=call.method,
            target=replace(target, query=self._credentials.query(target.query, keyed)),
            headers=self._outgoing(target, headers, body, keyed),
            body=body,
            timeouts=timeouts,
        )
        self._spend()
        await _while_guest_waits(call, receive, self._answer(call, request, send))

    def _outgoing(self, target: Target, headers: Headers, body: bytes, keyed: KeyedGrant) -> RawHeaders:
        """The headers as they leave: the guest's own, with the key in its place and nothing else changed."""
        self._credentials.keep_out(unquote(target.path).encode(), keyed, "path")
        self._credentials.keep_out(body, keyed, "body")
        dropped = _HOP_BY_HOP | _REPLACED | _named_by_connection(headers)
        passed = [(n, v) for n, v in headers if n not in dropped and not n.startswith(wire.OURS)]
        framed = any(name in ("content-length", "transfer-encoding") for name, _ in headers)
        sent = [
            ("host", target.authority),
            *self._credentials.headers(passed, keyed),
            # Recordings are read by people, and keys are looked for in what comes back.
            ("accept-encoding", "identity"),
            *([("content-length", str(len(body)))] if framed else []),
        ]
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in sent]

    def _spend(self) -> None:
        """Counts the call, before anything is dialled: a failure may have cost money too."""
        limit = self._config.max_calls
        if limit is not None and self._calls >= limit:
            calls = "1 call" if limit == 1 else f"{limit} calls"
            message = f"The budget of {calls} is spent. Record fewer tests, or raise it with --max-calls."
            raise Refused(Why.BUDGET, message)
        self._calls += 1

    async def _answer(self, call: _Call, request: Request, send: Send) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS), self._upstream.call(request) as response:
                await self._pass_on(call, response, send)
        except TimeoutError as error:
            raise UpstreamError("read_timeout", f"the answer took more than {CALL_SECONDS:.0f} s") from error

    async def _pass_on(self, call: _Call, response: Response, send: Send) -> None:
        headers = _returned(response)
        sizes = [value for name, value in headers if name.lower() == b"content-length"]
        if sizes and sizes[0].isdigit() and int(sizes[0]) > BODY_BYTES:
            raise _too_large("answer")
        start = {
            "type": "http.response.start",
            "status": response.status,
            "headers": [
                *((scrub(name, self._patterns), scrub(value, self._patterns)) for name, value in headers),
                (wire.ANSWER.encode(), b"live"),
                (wire.REASON.encode(), scrub(response.reason, self._patterns)),
            ],
        }
        call.status = response.status
        await send(start)
        scrubber = Scrubber(self._patterns)
        async for chunk in response.chunks:
            call.bytes += len(chunk)
            if call.bytes > BODY_BYTES:
                raise _too_large("answer")
            call.count.feed(chunk)
            if clean := scrubber.feed(chunk):
                await send({"type": "http.response.body", "body": clean, "more_body": True})
        self._close(call)
        await send({"type": "http.response.body", "body": scrubber.end(), "more_body": False})

    async def _say_no(self, call: _Call, send: Send, status: int, answer: str, **content: str) -> None:
        self._close(call)
        if call.status is not None:
            # An answer has begun. The server closes the connection of an application that
            # returns before its last part, and the guest's client raises its own error.
            return
        body = scrub(json.dumps(content).encode(), self._patterns)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (wire.ANSWER.encode(), answer.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _body(receive: Receive) -> bytes:
    """The whole body. The guest has read it to know the question, so that nothing is lost by waiting for it."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GuestGoneError
        body += message["body"]
        if len(body) > BODY_BYTES:
            raise _too_large("request")
        if not message["more_body"]:
            return bytes(body)


async def _while_guest_waits(call: _Call, receive: Receive, answering: Awaitable[None]) -> None:
    """Gives up the call as soon as the guest does: nobody would hear the rest of an answer that is paid for."""
    work = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        # The server reports a complete answer as a disconnect, too.
        if not work.done() and not call.closed:
            raise _GuestGoneError
        await work
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _returned(response: Response) -> RawHeaders:
    """The provider's headers as the guest gets them. Raises `UpstreamError` or `Refused` for what cannot be passed."""
    named = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers]
    if response.status not in range(200, 600):
        raise UpstreamError("protocol_error", f"the status {response.status} is none that HTTP knows")
    if any(name == "content-encoding" and value.lower() != "identity" for name, value in named):
        message = "The provider compressed its answer although it was asked not to: no key could be found in it."
        raise Refused(Why.ENCODED, message)
    dropped = _HOP_BY_HOP | _named_by_connection(named)
    if any(name == "transfer-encoding" for name, _ in named):
        dropped |= {"content-length"}  # chunks win over a length (RFC 9112, section 6.3)
    return [
        raw
        for raw, (name, _) in zip(response.headers, named, strict=True)
        if name not in dropped and not name.startswith(wire.OURS)
    ]


def _named_by_connection(headers: Headers) -> frozenset[str]:
    values = (value for name, value in headers if name == "connection")
    return frozenset(token.strip().lower() for value in values for token in value.split(","))


def _timeouts(text: str) -> dict[str, float | None]:
    try:
        given = {name: None if value is None else float(value) for name, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        message = f"The header {wire.TIMEOUT} is not a JSON object of seconds."
        raise Refused(Why.BAD_REQUEST, message) from error
    return {**TIMEOUTS, **given}


def _too_large(what: str) -> Refused:
    return Refused(Why.TOO_LARGE, f"The {what} is larger than {BODY_BYTES // 2**20} MiB, the most that is recorded.")
