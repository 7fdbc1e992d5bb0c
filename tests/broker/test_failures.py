"""How a provider's failures reach the guest, and what the guest's own end does."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import subprocess
import threading

import httpx2
import pytest

from sealtape.broker.wire import KeyedGrant
from sealtape.config import Grant


def nothing(conn, _asked):
    """Says nothing until the other side goes."""
    conn.recv(1)


def garbage(conn, _asked):
    conn.sendall(b"this is not HTTP\r\n\r\n")


def hang_up(_conn, _asked):
    pass


def reset(conn, _asked):
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize(
    ("behave", "kind"),
    [(nothing, "read_timeout"), (garbage, "protocol_error"), (hang_up, "protocol_error"), (reset, "read_error")],
)
def test_a_failure_before_the_answer_is_named(broker, provider, behave, kind):
    provider.behave = behave
    got = broker.ask("POST", provider.origin, headers={"sealtape-timeout": json.dumps({"connect": 5, "read": 0.2})})
    assert (got.status_code, got.headers["sealtape-answer"]) == (502, "failure")
    assert got.json()["kind"] == kind
    assert got.json()["message"]
    broker.door.close()
    assert [call.failure for call in broker.door.calls] == [kind]
    assert broker.door.summary()[1] == f"  failed: {provider.origin[7:]}, 1 call ({kind.replace('_', ' ')})"


def test_nobody_listens(start):
    with socket.create_server(("127.0.0.1", 0)) as free:
        origin = f"http://127.0.0.1:{free.getsockname()[1]}"
    got = start(KeyedGrant(grant=Grant(name="local", origins=(origin,)))).ask("GET", origin)
    assert got.json()["kind"] == "connect_error"


def test_nobody_takes_the_connection(start):
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        origin = f"http://127.0.0.1:{full.getsockname()[1]}"
        broker = start(KeyedGrant(grant=Grant(name="local", origins=(origin,))))
        got = broker.ask("GET", origin, headers={"sealtape-timeout": '{"connect": 0.2, "read": null}'})
    assert got.json()["kind"] == "connect_timeout"


def test_a_name_that_nobody_knows(start):
    broker = start(KeyedGrant(grant=Grant(name="acme", origins=("https://api.acme.invalid",))))
    got = broker.ask("GET", "https://api.acme.invalid/v1")
    assert got.json()["kind"] == "connect_error"
    assert "api.acme.invalid cannot be resolved" in got.json()["message"]


@pytest.fixture
def tls_provider(tmp_path):
    """A TLS server for `localhost`, its certificate, and the names it was asked by."""
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run(["openssl", *command.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    names = []
    context.sni_callback = lambda _conn, name, _context: names.append(name)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                answer(listener.accept()[0])

    def answer(conn):
        # A client that does not trust the certificate breaks off.
        with conn, contextlib.suppress(ssl.SSLError), context.wrap_socket(conn, server_side=True) as secure:
            secure.recv(65536)
            secure.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://localhost:{listener.getsockname()[1]}", (tmp_path / "cert.pem").read_text(), names
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        assert not thread.is_alive()


def test_tls_is_by_name_and_only_with_a_certificate_that_is_trusted(start, tls_provider):
    origin, certificate, names = tls_provider
    grant = KeyedGrant(grant=Grant(name="local", origins=(origin,)))
    trusting = start(grant, ca=certificate)
    assert trusting.ask("GET", f"{origin}/v1").text == "hello"
    trusting.door.close()
    got = start(grant).ask("GET", f"{origin}/v1")
    assert got.json()["kind"] == "connect_error"  # as every client has it
    assert "certificate verify failed" in got.json()["message"]
    assert "SEALTAPE_CA_BUNDLE" in got.json()["message"]
    assert names == ["localhost", "localhost"]


def test_an_answer_that_breaks_off_breaks_off_for_the_guest(broker, provider):
    def behave(conn, _):
        conn.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntw")

    provider.behave = behave
    heard = []
    with broker.stream(provider.origin) as got, pytest.raises(httpx2.RemoteProtocolError):
        heard.extend(got.iter_raw())
    assert (got.status_code, heard) == (200, [b"one", b"tw"])
    broker.door.close()
    assert [(call.status, call.failure) for call in broker.door.calls] == [(200, "protocol_error")]


def test_a_guest_that_goes_ends_the_call_to_the_provider(broker, provider):
    ended = threading.Event()

    def behave(conn, _):
        conn.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        conn.settimeout(5)
        if conn.recv(1) == b"":
            ended.set()

    provider.behave = behave
    with broker.stream(provider.origin) as got:
        assert next(got.iter_raw()) == b"one"
    assert ended.wait(5)
    broker.door.close()
    assert [(call.status, call.failure) for call in broker.door.calls] == [(200, "guest_gone")]


def test_a_guest_that_gives_up_waiting_ends_the_call_to_the_provider(broker, provider):
    ended = threading.Event()

    def behave(conn, _):
        conn.settimeout(5)
        if conn.recv(1) == b"":
            ended.set()

    provider.behave = behave
    with pytest.raises(httpx2.ReadTimeout):
        broker.ask("GET", provider.origin, timeout=0.2)
    assert ended.wait(5)
