"""What a user reads when an engine cannot be used: why, and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sealtape.errors import EngineError
from sealtape.sandbox import _bubblewrap
from sealtape.sandbox._docker import DockerEngine
from sealtape.sandbox.daemon import tip_for, unreachable, unsuitable
from sealtape.sandbox.policy import Limits, Mount


@pytest.mark.parametrize("address", ["tcp://192.0.2.7:2376", "ssh://me@build.example"])
def test_a_daemon_on_another_machine_is_not_asked(address, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", address)
    reason = DockerEngine().usable()
    assert f"{address} is on another machine, where the project cannot be mounted" in reason
    assert "unset DOCKER_HOST" in reason


def test_a_daemon_on_this_machines_loopback_is_asked():
    assert unreachable("tcp://127.0.0.1:2375") is None


def test_no_daemon_is_said_plainly(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert DockerEngine().usable().endswith("(no such file or directory); is Docker running?")


def test_a_rootless_daemon_is_found_and_explained(tmp_path, monkeypatch):
    (tmp_path / "docker.sock").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert f"a rootless one at unix://{tmp_path}/docker.sock is of no use here" in unreachable("unix:///none.sock")
    assert "is rootless" in unsuitable("unix:///x", {"SecurityOptions": ["name=seccomp", "name=rootless"]})
    assert "windows containers" in unsuitable("unix:///x", {"SecurityOptions": None, "OSType": "windows"})
    assert unsuitable("unix:///x", {"SecurityOptions": ["name=seccomp"], "OSType": "linux"}) is None


def test_no_permission_names_the_group(tmp_path):
    """As another user than root, who is not asked for permission."""
    path = Path("/var/tmp", f"sealtape-{os.getpid()}.sock")  # noqa: S108
    code = f"from sealtape.sandbox.daemon import unreachable; print(unreachable('unix://{path}'))"
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            path.chmod(0o600)
            server.listen(1)
            assert unreachable(f"unix://{path}") is None
            dropped = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534); " if not os.getuid() else ""
            path.chmod(0o600 if dropped else 0)
            done = subprocess.run(
                [sys.executable, "-c", f"import sealtape.sandbox.daemon; {dropped}{code}"],
                capture_output=True,
                text=True,
                check=True,
            )
    finally:
        path.unlink()
    assert "join its group (sudo usermod -aG docker $USER, then log in again)" in done.stdout


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_a_daemon_that_sees_other_folders_is_explained(sandbox):
    sandbox.policy_changes["mounts"] = (Mount(source="/nonexistent/folder", target="/x"),)
    with pytest.raises(EngineError, match="bind source path does not exist") as caught:
        sandbox.run()
    assert "inside a container that uses its host's daemon" in caught.value.tip
    assert tip_for("no space left on device") == "see `docker info` and the daemon's log"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("bwrap: setting up uid map: Permission denied", "aa-enforce bwrap-userns-restrict"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "aa-enforce bwrap-userns-restrict"),
        ("bwrap: Creating new namespace failed: Operation not permitted", "seccomp=unconfined"),
    ],
)
def test_what_bubblewrap_says_is_explained(tmp_path, monkeypatch, text, hint):
    """With the words of real versions of it, by a program in its place."""
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(_bubblewrap, "find_bwrap", lambda: str(program))
    reason = _bubblewrap.BubblewrapEngine().usable()
    assert reason.startswith(text)
    assert hint in reason


@pytest.mark.parametrize("where", ["pyproject.toml", "pytest.ini", "command line"])
def test_a_project_without_pytests_cache_runs(sandbox, where):
    sandbox.write("test_a.py", "def test_a():\n    pass\n")
    options = '["-p", "no:cacheprovider", "--strict-config"]'
    if where == "pyproject.toml":
        sandbox.write(where, f"[tool.sealtape]\n[tool.pytest.ini_options]\naddopts = {options}\n")
    if where == "pytest.ini":
        sandbox.write(where, "[pytest]\naddopts = -p no:cacheprovider --strict-config\n")
    args = ["-p", "no:cacheprovider", "--strict-config"] if where == "command line" else []
    assert sandbox.run(*args).exit_code == 0


def test_memory_and_processes_are_limited(sandbox):
    sandbox.policy_changes["limits"] = replace(Limits(), memory=256 << 20, processes=100)
    sandbox.write(
        "test_a.py",
        """
        import subprocess, sys, threading

        def run(code):
            return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode

        def test_memory():
            assert run("bytearray(1 << 20)") == 0
            assert run("bytearray(1 << 30)") != 0

        THREADS = "import threading, time\\nfor _ in range({}): threading.Thread(target=time.sleep, args=(1,)).start()"

        def test_processes():
            assert run(THREADS.format(20)) == 0
            assert run(THREADS.format(300)) != 0
        """,
    )
    assert sandbox.run().exit_code == 0
