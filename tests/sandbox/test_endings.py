"""A run that is interrupted twice, one that was killed, and what others see of one. More in test_kill_matrix.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sealtape.sandbox.policy import OUT

RUN = """
import json, pathlib, sys
from conftest import Sandbox
from sealtape.sandbox.engine import find_engine
name, images, root, out = sys.argv[1:]
engine = find_engine(name)
engine._images = json.loads(images)
sandbox = Sandbox(engine=engine, root=pathlib.Path(root), out=pathlib.Path(out))
sys.exit(sandbox.run("-s").exit_code)
"""


@pytest.fixture
def run(sandbox, capfd):
    """A run in a process of its own, whose one test says when it runs and then waits."""
    sandbox.write(
        "test_a.py",
        f"""
        import pathlib, time
        def test_waits():
            pathlib.Path("{OUT}/running").touch()
            time.sleep(120)
        """,
    )
    # The images that this session has made: another build would replace them.
    images = json.dumps(getattr(sandbox.engine, "_images", {}))
    command = [sys.executable, "-c", RUN, sandbox.engine.name, images, str(sandbox.root), str(sandbox.out)]
    with capfd.disabled():
        process = subprocess.Popen(
            command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    try:
        deadline = time.monotonic() + 60
        while not (sandbox.out / "running").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_a_second_interrupt_does_not_wait(run, remains):
    run.send_signal(signal.SIGINT)
    time.sleep(0.05)  # two signals of a kind that are pending at once are one
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=10)
    assert run.returncode == 130
    assert not remains()


def test_the_next_run_removes_what_a_kill_left(sandbox, run, remains):
    sandbox.engine.reap()
    assert remains(), "a run that is alive is left alone"
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    sandbox.engine.reap()
    deadline = time.monotonic() + 10
    while remains() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not remains()


@pytest.mark.usefixtures("run")
def test_the_environment_is_in_no_process_list():
    everything = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert "cache_dir=/tmp/pytest-cache" in everything
    assert "GIT_CONFIG_KEY_0" not in everything
