"""The one place that has a network: addresses, TLS, and the call as it goes to the provider."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore2

from sealtape.broker.rules import Target
from sealtape.broker.wire import Refused, UpstreamError, Why
from sealtape.config import LOOPBACK

RawHeaders = list[tuple[bytes, bytes]]
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Each of the client's failures, as a recording calls it.
FAILURES: Mapping[type[Exception], str] = {
    httpcore2.ConnectTimeout: "connect_timeout",
    httpcore2.ReadTimeout: "read_timeout",
    httpcore2.WriteTimeout: "write_timeout",
    httpcore2.PoolTimeout: "pool_timeout",
    httpcore2.ConnectError: "connect_error",
    httpcore2.ReadError: "read_error",
    httpcore2.WriteError: "write_error",
    httpcore2.LocalProtocolError: "protocol_error",
    httpcore2.RemoteProtocolError: "protocol_error",
    httpcore2.UnsupportedProtocol: "protocol_error",
    httpcore2.ProxyError: "proxy_error",
}

# What applies where the guest names no limit of its own.
TIMEOUTS: Mapping[str, float | None] = {"connect": 30.0, "read": 600.0, "write": 120.0, "pool": None}

# NAT64 (RFC 6052): an IPv4 address in IPv6 clothes, as are the mapped and 6to4 forms.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call as it goes to the provider. `timeouts` are seconds for connect, read and write; None waits."""

    method: str
    target: Target
    headers: RawHeaders
    body: bytes
    timeouts: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Response:
    """The provider's answer. `headers` keep order, case and duplicates; `chunks` come as they arrive."""

    status: int
    reason: bytes
    headers: RawHeaders
    chunks: AsyncIterator[bytes]


class Upstream:
    """Makes calls. Each has a connection of its own.

    A kept connection may be closed by the provider just as it is used again; that failure would
    be the detour's, and would be recorded as the provider's.
    """

    def __init__(self, *, ca: str | None = None, proxy: str | None = None) -> None:
        context = httpcore2.default_ssl_context()
        if ca:
            context.load_verify_locations(cadata=ca)
        self._direct = _pool(context, network_backend=_GuardedNetwork())
        # A proxy resolves the names itself; its own address is the user's word, and not examined.
        self._proxied = _pool(context, proxy=_proxy(proxy)) if proxy else self._direct

    @contextlib.asynccontextmanager
    async def call(self, request: Request) -> AsyncIterator[Response]:
        """One call. Raises `UpstreamError`, also while the chunks are read, and `Refused` for an address."""
        target = request.target
        url = httpcore2.URL(
            scheme=target.scheme,
            host=target.host.strip("[]"),
            port=target.port,
            target=target.path + target.query,
        )
        outgoing = httpcore2.Request(
            request.method,
            url,
            headers=request.headers,
            content=request.body,
            extensions={"timeout": dict(request.timeouts)},
        )
        pool = self._direct if is_loopback(target.host) else self._proxied
        with _failures():
            response = await pool.handle_async_request(outgoing)
        try:
            yield Response(
                status=response.status,
                reason=response.extensions.get("reason_phrase", b""),
                headers=response.headers,
                chunks=_chunks(response),
            )
        finally:
            await response.aclose()


async def _chunks(response: httpcore2.Response) -> AsyncIterator[bytes]:
    with _failures():
        async for chunk in response.aiter_stream():
            yield chunk


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except tuple(FAILURES) as error:
        message = str(error) or type(error).__name__
        # Not __cause__: the client's pool raises it again "from None".
        if isinstance(error.__context__, ssl.SSLCertVerificationError):
            message += " (behind a proxy that inspects TLS, SEALTAPE_CA_BUNDLE names its certificate)"
        raise UpstreamError(FAILURES[type(error)], message) from error


def _pool(context: ssl.SSLContext, **more: Any) -> httpcore2.AsyncConnectionPool:
    return httpcore2.AsyncConnectionPool(ssl_context=context, max_connections=None, max_keepalive_connections=0, **more)


def _proxy(url: str) -> httpcore2.Proxy:
    parts = urlsplit(url)
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return httpcore2.Proxy(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", auth=auth)


def is_loopback(host: str) -> bool:
    """Whether a grant's host is this machine itself, by name or address."""
    host = host.strip("[]")
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_public(address: IPAddress) -> bool:
    """Whether an address, and any address embedded in it, lies in the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(embedded)
    return address.is_global and not address.is_multicast


class _GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Resolves a name once, keeps to addresses that fit it, and dials by that address.

    TLS and the Host header still use the name: only the socket is told an address, so that a
    second look-up cannot lead elsewhere than the first one.
    """

    def __init__(self) -> None:
        self._network = httpcore2.AnyIOBackend()
        self._resolved: dict[tuple[str, int], list[str]] = {}

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 -- the base class's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure = httpcore2.ConnectError(f"no address of {host} answers")
        try:
            async with asyncio.timeout(timeout):
                for address in await self._addresses(host, port):
                    try:
                        return await self._network.connect_tcp(
                            address, port, local_address=local_address, socket_options=socket_options
                        )
                    except httpcore2.ConnectError as error:
                        failure = error
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"{host}:{port} did not answer within {timeout} s") from error
        raise failure

    async def _addresses(self, host: str, port: int) -> list[str]:
        if known := self._resolved.get((host, port)):
            return known
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore2.ConnectError(f"{host} cannot be resolved: {error}") from error
        addresses = [str(sockaddr[0]) for *_, sockaddr in found]
        local = is_loopback(host)
        fitting = [a for a in addresses if _fits(ipaddress.ip_address(a.partition("%")[0]), local=local)]
        if not fitting:
            wanted = "a loopback address" if local else "a public address"
            message = f"{host} is {', '.join(sorted(set(addresses)))} here, which is not {wanted}; it was not dialled."
            raise Refused(Why.ADDRESS, f"{message} Only public hosts, and this machine as 127.0.0.1, can be granted.")
        self._resolved[host, port] = fitting
        return fitting


def _fits(address: IPAddress, *, local: bool) -> bool:
    return address.is_loopback if local else is_public(address)
