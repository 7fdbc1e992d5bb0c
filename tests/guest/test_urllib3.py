"""urllib3, and what is built on it, against a real server on loopback that a grant names."""

from __future__ import annotations

import importlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
import urllib3

import sealtape
from sealtape.guest.seams import _urllib3


class Server:
    """Answers by path, and counts."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.calls.append((self.command, self.path, dict(self.headers), body))
                outer.respond(self, body)

            do_GET = do_POST = do_PUT = do_HEAD = _answer  # noqa: N815 -- the library's names

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()

    def stop(self) -> None:
        if self.thread.is_alive():
            self.http.shutdown()
            self.thread.join()
            self.http.server_close()

    def respond(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        path = request.path.partition("?")[0]
        if path == "/stream":
            request.send_response(200)
            request.send_header("content-type", "text/event-stream")
            request.send_header("transfer-encoding", "chunked")
            request.end_headers()
            for event in (b"data: one\n\n", b"data: zw\xc3\xb6lf\n\n", b"data: [DONE]\n\n"):
                request.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            request.wfile.write(b"0\r\n\r\n")
            return
        if path == "/cut":
            request.send_response(200)
            request.send_header("content-length", "100")
            request.end_headers()
            request.wfile.write(b"half")
            request.wfile.flush()
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return
        if path == "/slow":
            threading.Event().wait(2)
            return
        status, payload, headers = 200, json.dumps({"path": path, "sent": body.decode("latin-1")}).encode(), []
        if path == "/moved":
            status, payload, headers = 302, b"", [("location", "/there")]
        elif path == "/busy":
            status, payload = (503, b"busy") if len(self.calls) == 1 else (200, b"free")
        elif path == "/nothing":
            status, payload = 204, b""
        elif path == "/binary":
            payload = bytes(range(256))
        request.send_response(status)
        for header in [*headers, ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("content-length", str(len(payload)))]:
            if not (status == 204 and header[0] == "content-length"):
                request.send_header(*header)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(payload)


@pytest.fixture
def server():
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def both(server, tmp_path):
    """Does the same thing live and from the recording, and returns what came of it each time."""

    def run(action):
        grants = {"shop": {"hosts": [server.origin]}}
        with sealtape.session(mode="record", cassettes=tmp_path, grants=grants):
            live = action()
        calls = len(server.calls)
        server.stop()
        with sealtape.session(mode="replay", cassettes=tmp_path, grants=grants):
            played = action()
        assert len(server.calls) == calls
        return live, played

    return run


def seen(response: requests.Response):
    raw = response.raw
    headers = [(n, v) for n, v in raw.headers.iteritems() if n.lower() not in ("set-cookie", "date")]
    return response.status_code, response.reason, headers, response.content, raw.version_string, response.url


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("GET", "/plain?b=2&a=1", {}),
        ("POST", "/plain", {"json": {"model": "m", "messages": []}}),
        ("POST", "/plain", {"data": {"field": "value"}}),
        ("POST", "/plain", {"data": (part for part in (b"one", b"two"))}),
        ("POST", "/plain", {"files": {"file": ("a.bin", bytes(range(256)))}}),
        ("PUT", "/plain", {"data": "zwölf"}),
        ("GET", "/binary", {}),
        ("GET", "/stream", {}),
        ("GET", "/nothing", {}),
        ("HEAD", "/plain", {}),
    ],
)
def test_requests_sees_the_same(server, both, method, path, options):
    def action():
        kept = dict(options)
        if hasattr(kept.get("data"), "send"):  # a generator is gone after its first use
            kept["data"] = (part for part in (b"one", b"two"))
        return seen(requests.request(method, server.origin + path, timeout=5, **kept))

    live, played = both(action)
    assert live == played


def test_every_hop_of_a_redirect_is_recorded(server, both, tmp_path):
    def action():
        with requests.Session() as session:
            response = session.get(f"{server.origin}/moved", timeout=5)
            return response.url, [hop.status_code for hop in response.history], response.json()["path"]

    live, played = both(action)
    assert live == played == (f"{server.origin}/there", [302], "/there")
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_redirect_that_is_not_followed_stays_one(server, both):
    live, played = both(lambda: requests.get(f"{server.origin}/moved", timeout=5, allow_redirects=False).status_code)
    assert live == played == 302


def test_duplicate_headers_stay_apart(server, both):
    live, played = both(lambda: requests.get(f"{server.origin}/plain", timeout=5).raw.headers.getlist("set-cookie"))
    assert live == ["a=1", "b=2"]
    assert played == ["a=REDACTED", "b=REDACTED"]


@pytest.mark.parametrize("size", [None, 1, 7, 1024])
def test_a_stream_is_read_in_any_way(server, both, size):
    def action():
        with requests.get(f"{server.origin}/stream", timeout=5, stream=True) as response:
            return b"".join(response.iter_content(size))

    live, played = both(action)
    assert live == played == "data: one\n\ndata: zwölf\n\ndata: [DONE]\n\n".encode()


def test_a_stream_is_read_by_lines_and_by_hand(server, both):
    def action():
        with requests.get(f"{server.origin}/stream", timeout=5, stream=True) as response:
            lines = list(response.iter_lines())
        pool = urllib3.PoolManager()
        raw = pool.request("GET", f"{server.origin}/stream", preload_content=False)
        pieces = [raw.read1(), raw.read(3), *raw.stream(5), raw.read()]
        raw.release_conn()
        pool.clear()
        return lines, b"".join(pieces)

    live, played = both(action)
    assert live == played


def test_a_retry_plays_its_sequence(server, both):
    def action():
        with urllib3.PoolManager(retries=urllib3.Retry(2, status_forcelist=[503], backoff_factor=0)) as pool:
            return pool.request("GET", f"{server.origin}/busy").data

    live, played = both(action)
    assert live == played == b"free"


def test_a_time_out_is_the_same_exception(server, both):
    def action():
        with pytest.raises(requests.ReadTimeout) as caught:
            requests.get(f"{server.origin}/slow", timeout=0.2)
        return type(caught.value)

    live, played = both(action)
    assert live == played


def test_a_body_that_breaks_off_is_the_same_exception(server, both):
    def action():
        with requests.get(f"{server.origin}/cut", timeout=5, stream=True) as response:
            pieces = response.iter_content(4)
            first = next(pieces)
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                list(pieces)
            return first

    live, played = both(action)
    assert live == played == b"half"


def test_a_refused_connection_is_the_same_exception(server, tmp_path):
    grants = {"shop": {"hosts": [server.origin]}}
    server.stop()
    for mode in ("record", "replay"):
        with (
            sealtape.session(mode=mode, cassettes=tmp_path, grants=grants),
            pytest.raises(requests.ConnectionError, match=r"refused|Failed to establish"),
        ):
            requests.get(server.origin, timeout=5)
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_miss_is_not_retried(server, tmp_path):
    grants = {"shop": {"hosts": [server.origin]}}
    with (
        sealtape.session(mode="replay", cassettes=tmp_path, grants=grants),
        requests.Session() as session,
    ):
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(5, backoff_factor=5)))
        with pytest.raises(sealtape.CassetteMiss):
            session.get(server.origin, timeout=5)
    assert server.calls == []


def test_servers_of_the_tests_own_are_left_alone(server, tmp_path):
    with sealtape.session(mode="replay", cassettes=tmp_path):
        assert requests.get(f"{server.origin}/plain", timeout=5).json()["path"] == "/plain"
    assert len(server.calls) == 1


def test_every_kind_of_failure_has_its_exception():
    from sealtape.cassette.model import FAILURES

    assert set(_urllib3.EXCEPTIONS) == set(FAILURES)


@pytest.mark.parametrize("get", ["requests", "httpx", "httpx2"])
def test_nobody_reads_beyond_what_was_read_when_it_was_recorded(server, tmp_path, get):
    grants = {"shop": {"hosts": [server.origin]}}

    def read(*, whole):
        if get == "requests":
            with requests.get(f"{server.origin}/stream", timeout=5, stream=True) as response:
                pieces = response.iter_content(4)
                return b"".join(pieces) if whole else next(pieces)
        lib = importlib.import_module(get)
        with lib.stream("GET", f"{server.origin}/stream") as response:
            pieces = response.iter_raw(4)
            return b"".join(pieces) if whole else next(pieces)

    with sealtape.session(mode="record", cassettes=tmp_path, grants=grants):
        read(whole=False)
    with sealtape.session(mode="replay", cassettes=tmp_path, grants=grants):
        assert read(whole=False) == b"data"
        with pytest.raises(sealtape.CassetteMiss, match="nobody read on"):
            read(whole=True)
