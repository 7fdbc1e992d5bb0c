"""A suite as projects have them, with libraries that fake HTTP side by side: sealed, it runs as it always did."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SUITE = """
    import os

    import httpx
    import pytest
    import requests
    import responses
    import vcr

    HERE = "http://127.0.0.1:PORT/word"  # gone by the time of the sealed run: only the recordings are left
    AWAY = "https://api.example.com/v1/word"

    def test_vcrpy():
        with vcr.use_cassette("tapes/word.yaml"):
            assert requests.get(HERE).text == "a word"

    @pytest.mark.vcr
    def test_pytest_recording():
        assert httpx.get(HERE).text == "a word"

    def test_pytest_httpx(httpx_mock):
        httpx_mock.add_response(url=AWAY, text="pytest-httpx")
        assert httpx.get(AWAY).text == "pytest-httpx"

    @responses.activate
    def test_responses():
        responses.get(AWAY, json={"word": "responses"}, status=201)
        answer = requests.get(AWAY)
        assert (answer.status_code, answer.json()) == (201, {"word": "responses"})

    @responses.activate
    def test_what_responses_does_not_know():
        with pytest.raises(requests.ConnectionError):
            requests.get(AWAY)

    def test_two_at_once(httpx_mock):
        httpx_mock.add_response(url=AWAY, text="pytest-httpx")
        with responses.RequestsMock() as mock:
            mock.get(AWAY, body="responses")
            assert (requests.get(AWAY).text, httpx.get(AWAY).text) == ("responses", "pytest-httpx")
"""


RESPX = """
    import asyncio

    import httpx
    import pytest
    import respx

    AWAY = "https://api.example.com/v1/word"

    @respx.mock
    def test_respx():
        respx.get(AWAY).respond(json={"word": "respx"})
        assert httpx.get(AWAY).json() == {"word": "respx"}

    @respx.mock
    async def ask():
        route = respx.get(AWAY).mock(side_effect=httpx.ConnectError)
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(AWAY)
        return route.called

    def test_respx_with_asyncio():
        assert asyncio.run(ask())
"""


@pytest.fixture
def recorded(sandbox):
    """The suite, with what vcrpy and pytest-recording record on the host, from a real server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", "6")
            self.end_headers()
            self.wfile.write(b"a word")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        sandbox.write("test_public.py", SUITE.replace("PORT", str(server.server_address[1])))
        # Without sealtape, as the suite was before.
        plain = [sys.executable, "-m", "pytest", "-p", "no:sealtape", "--record-mode=once", "-q", "test_public.py"]
        done = subprocess.run(plain, cwd=sandbox.root, capture_output=True, text=True, check=False)
        server.shutdown()
        thread.join()
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    assert (sandbox.root / "tapes" / "word.yaml").exists()
    assert (sandbox.root / "cassettes" / "test_public" / "test_pytest_recording.yaml").exists()
    return sandbox


def test_it_runs_sealed(recorded, capfd):
    assert recorded.run("test_public.py", "--cov=.", "--cov-report=term").exit_code == 0
    output = capfd.readouterr().out
    assert "6 passed" in output
    assert "TOTAL" in output, "pytest-cov, whose data file has a place to be written to"


def test_respx_runs_sealed(sandbox):
    sandbox.write("test_respx.py", RESPX)
    plain = [sys.executable, "-m", "pytest", "-p", "no:sealtape", "-q", "test_respx.py"]
    assert subprocess.run(plain, cwd=sandbox.root, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert sandbox.run("test_respx.py").exit_code == 0
