"""The whole command, as a user types it, on a project of its own and a provider on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
# Fixed, because the port is in pyproject.toml, which is in the image.
PORT = 18765
KEY = "sk-real-0123456789-never-in-the-guest"


@dataclass
class Provider:
    """A model server that wants a key. It answers with the prompt in capitals, and counts."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    answer: Callable[[str], str] = str.upper

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        self.calls.append({"authorization": request.headers["authorization"], "body": body})
        self.meanwhile()
        status, document = 200, self.completion(body)
        if request.headers["authorization"] != f"Bearer {KEY}":
            status, document = 401, {"error": {"message": "Incorrect API key", "type": "invalid_request_error"}}
        payload = json.dumps(document).encode()
        request.send_response(status)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(payload)))
        request.end_headers()
        request.wfile.write(payload)

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        number = len(self.calls)
        message = {"role": "assistant", "content": self.answer(body["messages"][-1]["content"])}
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1_700_000_000 + number,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.handle(self)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", PORT), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


APPLICATION = """
    import os
    import openai

    FALLBACK = "please call again"

    def ask(text, *, temperature=0, base_url="http://127.0.0.1:18765/v1", **more):
        with openai.OpenAI(base_url=base_url, max_retries=5, **more.pop("client", {})) as client:
            answer = client.chat.completions.create(
                model="m-1", temperature=temperature, messages=[{"role": "user", "content": text}], **more
            )
        return answer.choices[0].message.content

    def ask_or_fall_back(text, **more):
        try:
            return ask(text, **more)
        except Exception:
            return FALLBACK
"""


@dataclass
class Project:
    """A user's project: `write` its tests, `run` sealtape in it with one engine."""

    root: Path
    engine: str

    @property
    def cassettes(self) -> list[Path]:
        return sorted((self.root / "cassettes").glob("*.json"))

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sealtape", args[0], "--engine", self.engine, *args[1:]]
        return self.shell(command, **env)

    def shell(self, command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a command with both streams in one, as a terminal shows them."""
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and k not in ("CI", "CASSETTE_MODE")}
        return subprocess.run(
            command,
            cwd=self.root,
            env={**kept, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="session")
def checkout() -> Iterator[Path]:
    """A project with this repository's environment, where any uid may read it."""
    root = Path("/var/tmp", f"sealtape-e2e-{os.getpid()}")  # noqa: S108 -- pytest's own folder is closed to others
    root.mkdir()
    for name in ("Containerfile", "LICENSE"):
        shutil.copy(REPOSITORY / name, root / name)
    shutil.copytree(REPOSITORY / "runner", root / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    pyproject, _, _ = (REPOSITORY / "pyproject.toml").read_text().partition("[tool.sealtape]")
    grant = f'[tool.sealtape.grants.shop]\nhosts = ["http://127.0.0.1:{PORT}"]\nkey_env = "OPENAI_API_KEY"\n'
    (root / "pyproject.toml").write_text(f"{pyproject}[tool.sealtape]\n\n{grant}")
    try:
        yield root
    finally:
        shutil.rmtree(root)
        listing = ["docker", "images", "-q", "--filter", f"reference=sealtape/{root.name}*"]
        images = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
        if images:
            subprocess.run(["docker", "rmi", "-f", *set(images)], capture_output=True, check=True)


@pytest.fixture(params=["docker", "bubblewrap"])
def project(request: pytest.FixtureRequest, checkout: Path) -> Project:
    for folder in ("tests", "cassettes", ".sealtape"):
        shutil.rmtree(checkout / folder, ignore_errors=True)
    (checkout / "tests").mkdir()
    made = Project(root=checkout, engine=request.param)
    made.write("tests/conftest.py", "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\n")
    made.write("tests/shop.py", APPLICATION)
    return made
