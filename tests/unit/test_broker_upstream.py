from __future__ import annotations

import ipaddress
import socket

import httpcore2
import pytest

from sealtape.broker.upstream import FAILURES, _GuardedNetwork, is_loopback, is_public
from sealtape.broker.wire import Refused
from sealtape.cassette import model


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",  # noqa: S104 -- refused
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
    ],
)
def test_addresses_that_are_not_public(address):
    assert not is_public(ipaddress.ip_address(address))


def test_loopback_is_a_matter_of_the_grants_own_words():
    assert [
        h for h in ("localhost", "127.0.0.1", "127.9.9.9", "[::1]", "localhost.evil.test", "10.0.0.1") if is_loopback(h)
    ] == [
        "localhost",
        "127.0.0.1",
        "127.9.9.9",
        "[::1]",
    ]


def resolving(monkeypatch, *addresses):
    """Makes the system's resolver answer with these, and counts how often it is asked."""
    asked = []

    def getaddrinfo(host, port, *_args, **_more):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


async def test_a_name_is_resolved_once_and_only_its_public_addresses_are_used(monkeypatch):
    asked = resolving(monkeypatch, "10.0.0.1", "8.8.8.8")
    network = _GuardedNetwork()
    assert await network._addresses("api.acme.test", 443) == ["8.8.8.8"]
    assert await network._addresses("api.acme.test", 443) == ["8.8.8.8"]
    assert asked == ["api.acme.test"]


@pytest.mark.parametrize(
    ("host", "address"),
    [("api.acme.test", "127.0.0.1"), ("api.acme.test", "169.254.169.254"), ("localhost", "8.8.8.8")],
)
async def test_a_name_that_leads_elsewhere_is_refused(monkeypatch, host, address):
    resolving(monkeypatch, address)
    with pytest.raises(Refused, match=f"{host} is {address} here") as caught:
        await _GuardedNetwork().connect_tcp(host, 443)
    assert caught.value.why == "address"


def test_every_failure_of_the_client_has_a_name():
    errors = {error for error in vars(httpcore2).values() if isinstance(error, type) and issubclass(error, Exception)}
    # The bases of the others, and the pool's own signal to itself.
    above = {
        httpcore2.TimeoutException,
        httpcore2.NetworkError,
        httpcore2.ProtocolError,
        httpcore2.ConnectionNotAvailable,
    }
    assert set(FAILURES) == errors - above
    assert set(FAILURES.values()) == set(model.FAILURES)
