"""Attempts to get out, made by a test in the sandbox. Each is made on the host first, where it works."""

from __future__ import annotations

import json
import shutil
import socket
import socketserver
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from sealtape.sandbox.policy import OUT

# Each ends with exit code 0 if it got through, 3 if it was blocked; anything else is a broken attempt.
ATTEMPTS = {
    "create_connection": """
        import socket, sys
        try: socket.create_connection(("127.0.0.1", PORT), timeout=2).close()
        except OSError: sys.exit(3)
    """,
    "urllib": """
        import sys, urllib.error, urllib.request
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try: opener.open(f"http://127.0.0.1:{PORT}/", timeout=2).read()
        except urllib.error.URLError: sys.exit(3)
    """,
    "connect(2) by way of ctypes": """
        import ctypes, struct, sys
        libc = ctypes.CDLL(None)
        descriptor = libc.socket(2, 1, 0)
        assert descriptor >= 0
        address = struct.pack("=H", 2) + struct.pack(">H", PORT) + bytes([127, 0, 0, 1]) + bytes(8)
        sys.exit(3 if libc.connect(descriptor, address, len(address)) else 0)
    """,
    "curl in a subprocess": """
        import subprocess, sys
        done = subprocess.run(["curl", "-sS", "--noproxy", "*", "-m", "2", f"http://127.0.0.1:{PORT}/"])
        sys.exit({0: 0, 7: 3}.get(done.returncode, 9))
    """,
    "the host's name in the hosts file": """
        import socket, sys
        try: socket.getaddrinfo(HOSTNAME, PORT)
        except socket.gaierror: sys.exit(3)
    """,
    "a unix socket of the host": """
        import socket, sys
        with socket.socket(socket.AF_UNIX) as sock:
            try: sock.connect(UNIX)
            except OSError: sys.exit(3)
    """,
    "an abstract socket of the host": """
        import socket, sys
        with socket.socket(socket.AF_UNIX) as sock:
            try: sock.connect(ABSTRACT)
            except OSError: sys.exit(3)
    """,
    "a socket in the project": """
        import socket, sys
        with socket.socket(socket.AF_UNIX) as sock:
            try: sock.connect("in-project.sock")
            except OSError: sys.exit(3)
    """,
    "writing to the project": """
        import pathlib, sys
        try: pathlib.Path("written-inside").write_text("x")
        except OSError: sys.exit(3)
    """,
    "a file of secrets": """
        import pathlib, sys
        sys.exit(0 if "sk-" in pathlib.Path("sub/.env").read_text() else 3)
    """,
    "a vsock": """
        import socket, sys
        try: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
        except OSError: sys.exit(3)
    """,
    "a raw packet socket": """
        import socket, sys
        try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
        except OSError: sys.exit(3)
    """,
    "another process's memory": """
        import ctypes, os, sys
        class Vector(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        source, target = ctypes.create_string_buffer(b"x" * 8), ctypes.create_string_buffer(8)
        here, there = Vector(ctypes.addressof(target), 8), Vector(ctypes.addressof(source), 8)
        got = ctypes.CDLL(None).process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        sys.exit(0 if got == 8 else 3)
    """,
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def host(sandbox, tmp_path):
    """What the host has to offer: an HTTP server, and sockets of each kind."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        unix, abstract, inside = (socket.socket(socket.AF_UNIX) for _ in range(3))
        with unix, abstract, inside:
            unix.bind(str(tmp_path / "s"))
            abstract.bind("\0" + tmp_path.name)
            inside.bind(f"{sandbox.root}/in-project.sock")
            for one in (unix, abstract, inside):
                one.listen(8)
            yield server.server_address[1], str(tmp_path / "s"), "\0" + tmp_path.name, socket.gethostname()
        server.shutdown()
        thread.join()


def test_what_works_outside_is_blocked_inside(sandbox, host):
    sandbox.write("sub/.env", "KEY=sk-in-a-file\n")
    for number, attempt in enumerate(ATTEMPTS.values()):
        sandbox.write(f"attempt_{number}.py", f"PORT, UNIX, ABSTRACT, HOSTNAME = {host!r}\n" + textwrap.dedent(attempt))
    outside = {
        name: subprocess.run([sys.executable, f"attempt_{number}.py"], cwd=sandbox.root, check=False).returncode
        for number, name in enumerate(ATTEMPTS)
    }
    assert outside == dict.fromkeys(ATTEMPTS, 0)
    (sandbox.root / "written-inside").unlink()

    sandbox.write(
        "test_attempts.py",
        f"""
        import json, pathlib, subprocess, sys
        def test_attempts():
            run = lambda number: subprocess.run([sys.executable, f"attempt_{{number}}.py"]).returncode
            pathlib.Path("{OUT}/codes").write_text(json.dumps([run(number) for number in range({len(ATTEMPTS)})]))
        """,
    )
    assert sandbox.run().exit_code == 0
    inside = dict(zip(ATTEMPTS, json.loads((sandbox.out / "codes").read_text()), strict=True))
    assert inside == dict.fromkeys(ATTEMPTS, 3)


def test_a_key_of_the_host_is_not_inside(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-real-key-of-the-host")
    text = "import os\ndef test_absent():\n    assert 'real-key' not in os.environ.get('OPENAI_API_KEY', '')\n"
    sandbox.write("test_a.py", text)
    outcome = sandbox.run(secrets={"OPENAI_API_KEY": "sk-a-real-key-of-the-host"})
    assert outcome.exit_code == 0
    assert "sk-a-real" not in json.dumps(outcome.verdict.to_json())


@pytest.fixture
def repository(sandbox):
    """A checkout with a commit, a tag, and the token that a CI action leaves behind."""

    def git(*arguments, cwd=sandbox.root):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, stdout=subprocess.DEVNULL)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "the first")
    git("tag", "-a", "v1.2.3", "-m", "x")
    git("config", "http.https://github.com/.extraheader", "AUTHORIZATION: basic c2VjcmV0LXRva2Vu")
    git("remote", "add", "origin", "https://x-access-token:secret-token@github.com/a/b")
    return git


GIT_TEST = """
    import pathlib, subprocess

    def git(*arguments):
        return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout

    def test_git():
        assert "the first" in git("log")
        assert git("describe").strip() == "v1.2.3"
        assert "test_git.py" in git("status", "--porcelain")
        assert git("remote", "get-url", "origin").strip() == "https://github.com/a/b"
        everything = git("config", "--list", "--show-origin") + pathlib.Path(CONFIG).read_text()
        assert "secret-token" not in everything
        assert "c2VjcmV0" not in everything
"""


@pytest.mark.usefixtures("repository")
def test_git_works_without_its_token(sandbox):
    config = sandbox.root / ".git" / "config"
    assert "secret-token" in config.read_text()
    sandbox.write("test_git.py", GIT_TEST.replace("CONFIG", "'.git/config'"))
    assert sandbox.run().exit_code == 0
    assert "secret-token" in config.read_text()


def test_git_works_in_a_worktree(sandbox, repository):
    repository("worktree", "add", "-q", "-b", "other", "../" + sandbox.root.name + " worktree")
    main, sandbox.root = sandbox.root, sandbox.root.with_name(sandbox.root.name + " worktree")
    try:
        sandbox.write("test_git.py", GIT_TEST.replace("CONFIG", repr(str(main / ".git/config"))))
        assert sandbox.run().exit_code == 0
    finally:
        shutil.rmtree(sandbox.root)
