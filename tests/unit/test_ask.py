from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import sealtape
from sealtape import CallError, CassetteMiss
from sealtape.guest import ask

SAID: dict[str, Any] = {"choices": [{"message": {"content": "Hello"}}], "usage": {"total_tokens": 3}}


@dataclass
class Model:
    """A chat server on loopback that says what it is told to."""

    port: int = 0
    status: int = 200
    body: bytes = json.dumps(SAID).encode()
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    hold: threading.Event | None = None

    @property
    def settings(self) -> dict[str, Any]:
        origin = f"http://127.0.0.1:{self.port}"
        return {"chat_url": f"{origin}/v1/", "grants": {"local": {"hosts": [origin], "key_env": "ACME_API_KEY"}}}


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            made.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            if made.hold:
                made.hold.wait(30)
            with contextlib.suppress(ConnectionError):
                self.send_response(made.status)
                self.send_header("content-length", str(len(made.body)))
                self.end_headers()
                self.wfile.write(made.body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield made
        if made.hold:
            made.hold.set()
        server.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACME_API_KEY", "acme-key-of-this-test")
    for name in ("CASSETTE_MODE", "CASSETTE_DIR", "SEALTAPE_GUEST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_call_is_recorded_and_replayed(model: Model, project: Path) -> None:
    with sealtape.session("record", **model.settings):
        assert sealtape.call("m", "Hi", 0.5, max_tokens=7) == "Hello"
    (path, headers, body) = model.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer acme-key-of-this-test"
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "max_tokens": 7,
    }
    with sealtape.session(**model.settings):
        assert sealtape.call("m", "Hi", 0.5, max_tokens=7) == "Hello"
        with pytest.raises(CassetteMiss):
            sealtape.call("m", "Hi", 0.5)
    assert len(model.asked) == 1
    key = sealtape.key_for("m", "Hi", 0.5, max_tokens=7)
    document = json.loads((project / "cassettes" / f"{key}.json").read_text())
    assert (document["key"], document["model"], document["text"], document["usage"]) == (
        key,
        "m",
        "Hello",
        SAID["usage"],
    )


def test_without_a_session_a_call_replays(project: Path) -> None:
    key = sealtape.key_for("m", "Hi", 0.0)
    simple = {"key": key, "model": "m", "prompt_sha": "x", "text": "Yes", "usage": {}, "recorded_at": "2025-01-01"}
    (project / "cassettes").mkdir()
    (project / "cassettes" / f"{key}.json").write_text(json.dumps(simple))
    program = "import sealtape; print(sealtape.call('m', 'Hi')); sealtape.call('m', 'Hello')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=project, check=False)
    assert done.stdout == "Yes\n"
    assert "sealtape.errors.CassetteMiss: no recording for call('m')" in done.stderr


def test_a_miss_carries_key_and_prompt() -> None:
    with sealtape.session(), pytest.raises(CassetteMiss) as caught:
        sealtape.call("m", "Hi")
    assert (caught.value.key, caught.value.prompt) == (sealtape.key_for("m", "Hi", 0.0), "Hi")


def test_off_asks_live_and_records_nothing(model: Model, project: Path) -> None:
    with sealtape.session("off", **model.settings):
        assert sealtape.call("m", "Hi") == sealtape.call("m", "Hi") == "Hello"
    assert len(model.asked) == 2
    assert not (project / "cassettes").exists()


def text_of_error(mode: str, model: Model) -> str:
    with sealtape.session(mode, **model.settings), pytest.raises(CallError) as caught:
        sealtape.call("m", "Hi")
    return str(caught.value)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b'{"error": {"message": "no such key"}}', "401"),
        (500, b"out of order", "500"),
        (200, b'{"choices": []}', "200"),
        (200, b'{"choices": [{"message": {"content": null}}]}', "200"),
        (200, b"[]", "200"),
    ],
)
def test_an_answer_without_a_text_is_an_error_and_is_replayed_as_the_same(
    model: Model, status: int, body: bytes, said: str
) -> None:
    model.status, model.body = status, body
    live = text_of_error("record", model)
    assert said in live
    assert text_of_error("replay", model) == live
    assert len(model.asked) == 1


def test_a_refused_connection_is_recorded_as_one(model: Model) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        model.port = closed.getsockname()[1]
    live = text_of_error("record", model)
    assert "m could not be asked: connect_error" in live
    assert text_of_error("replay", model) == live


def test_a_model_that_does_not_answer_is_recorded_as_a_timeout(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "TIMEOUT", 0.2)
    model.hold = threading.Event()
    live = text_of_error("record", model)
    assert "read_timeout" in live
    assert text_of_error("replay", model) == live


def test_the_key_goes_nowhere_but_to_its_host(model: Model, project: Path) -> None:
    settings = {**model.settings, "grants": {"other": {"hosts": ["api.example.com"], "key_env": "ACME_API_KEY"}}}
    with sealtape.session("record", **settings):
        sealtape.call("m", "Hi")
    assert "authorization" not in model.asked[0][1]
    for path in project.rglob("*.json"):
        assert "acme-key-of-this-test" not in path.read_text()
