"""Signals × engines × replay and record: nothing is left, and the old cassettes are what they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import json, pathlib, sys
from sealtape import config, runs
from sealtape.sandbox.engine import find_engine
from sealtape.screen import Screen
command, name, images = sys.argv[1:]
engine = find_engine(name)
engine._images = json.loads(images)
runs._engine = lambda *_, **__: engine
run = runs.Run(settings=config.load(pathlib.Path.cwd()), screen=Screen(), pytest_args=("-s",))
sys.exit(runs.replay(run) if command == "replay" else runs.record(run, runs.Budget(allow_ci=True)))
"""
PROJECT = """
[tool.sealtape]
tests = ["test_a.py"]
[tool.sealtape.grants.local]
hosts = ["http://127.0.0.1:9"]
"""
TEST = """
import os, time

def test_waits():
    os.write(1, b"the test runs\\n")
    time.sleep(120)
"""


@pytest.fixture
def started(sandbox, tmp_path, capfd):
    """Starts a command whose temporary files lie in a folder of its own; returns when its test runs."""
    sandbox.write("pyproject.toml", PROJECT)
    sandbox.write("test_a.py", TEST)
    sandbox.write("cassettes/0123456789abcdef.json", "{}\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    processes = []

    def start(command):
        images = json.dumps(getattr(sandbox.engine, "_images", {}))
        environ = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        with capfd.disabled():
            process = subprocess.Popen(
                [sys.executable, "-c", RUN, command, sandbox.engine.name, images],
                cwd=sandbox.root,
                env={**environ, "TMPDIR": str(temporary)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        processes.append(process)
        before = []
        for line in process.stdout:
            before.append(line)
            if line.strip().endswith("the test runs"):
                return process, temporary
        raise AssertionError("".join(before))

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def left(temporary):
    """Containers, volumes, processes, and files (sockets among them) of the runs that had this temporary folder."""
    found = {str(path.relative_to(temporary)) for path in temporary.rglob("*")} - {f"sealtape-{os.getuid()}"}
    for kind in (["ps", "-a", "--format", '{{.ID}} {{.Label "sealtape.run"}}'], VOLUMES):
        lines = subprocess.run(["docker", *kind], capture_output=True, text=True, check=True).stdout.splitlines()
        found |= {line for line in lines if str(temporary) in line}
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            # Under bubblewrap the guest itself has none of it, but dies with one that has.
            if f"TMPDIR={temporary}".encode() in environ.read_bytes():
                found.add(f"process {environ.parent.name}")
        except OSError:
            continue  # it has ended since the listing
    return found


VOLUMES = ["volume", "ls", "--format", '{{.Name}} {{.Label "sealtape.run"}}']


@pytest.mark.parametrize("command", ["replay", "record"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left(started, sandbox, remains, command, number):
    process, temporary = started(command)
    assert remains()
    assert left(temporary)
    start = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert time.monotonic() - start < 10
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        # The next run, of either command, begins with this.
        following = [sys.executable, "-c", REAP, sandbox.engine.name]
        subprocess.run(following, env={**os.environ, "TMPDIR": str(temporary)}, check=True)
    else:
        assert process.returncode == 130
        assert "KeyboardInterrupt" in output
        assert "no tests ran" in output
    deadline = time.monotonic() + 10
    while (remains() or left(temporary)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not remains()
    assert left(temporary) == set()
    cassettes = sandbox.root / "cassettes"
    assert {path.name: path.read_text() for path in cassettes.iterdir()} == {"0123456789abcdef.json": "{}\n"}


REAP = "import sys; from sealtape.sandbox.engine import find_engine; find_engine(sys.argv[1]).reap()"
