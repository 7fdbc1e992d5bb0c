"""The broker's life: it begins with one line, and ends with its host."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sealtape.broker.door import Door
from sealtape.broker.wire import BrokerConfig
from sealtape.errors import EngineError


def test_it_ends_when_the_hosts_end_closes(broker):
    assert stat.S_IMODE(broker.socket.stat().st_mode) == 0o666
    broker.door.close()
    assert broker.process.wait(5) == 0
    assert not broker.socket.exists()


def test_it_ends_on_sigterm_and_leaves_ctrl_c_to_its_host(broker, provider):
    broker.process.send_signal(signal.SIGINT)
    assert broker.ask("GET", provider.origin).status_code == 200
    broker.process.terminate()
    assert broker.process.wait(5) == 0


def test_it_ends_while_a_call_is_under_way(broker, provider):
    def behave(conn, _):
        broker.door.close()
        conn.settimeout(5)
        conn.recv(1)

    provider.behave = behave
    got = broker.ask("GET", provider.origin)
    assert got.status_code != 200
    assert broker.process.wait(5) == 0


def test_no_key_is_visible_from_outside(broker, grant):
    process = Path("/proc") / str(broker.process.pid)
    visible = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert b"sealtape.broker" in visible
    assert grant.key.encode() not in visible
    assert b"a-token-of-this-run" not in visible


def test_it_loads_only_what_its_image_has():
    code = "import sys, sealtape.broker.__main__; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "uvicorn" in done.stdout
    for absent in ("pytest", "detect_secrets", "rich", "docker", "requests"):
        assert f"'{absent}'" not in done.stdout


def test_a_line_that_is_no_configuration_is_not_repeated():
    line = b'{"token": "secret-token"}\n'
    done = subprocess.run([sys.executable, "-m", "sealtape.broker"], input=line, capture_output=True, check=False)
    assert done.returncode == 64
    assert json.loads(done.stdout) == {"event": "error", "message": "the configuration line is not valid (KeyError)"}
    assert b"secret-token" not in done.stdout + done.stderr


def test_a_broker_that_cannot_start_says_why(tmp_path):
    folder = tmp_path / "missing"
    process = subprocess.Popen([sys.executable, "-m", "sealtape.broker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        door = Door(
            send=lambda line: (process.stdin.write(line), process.stdin.flush()),
            lines=process.stdout,
            close=process.stdin.close,
            audit=tmp_path / "audit.jsonl",
        )
        with pytest.raises(
            EngineError, match=r"the broker ended before it was ready\n.*No such file or directory"
        ) as caught:
            door.open(BrokerConfig(socket=str(folder / "door.sock"), token="t", grants=()))
        assert caught.value.exit_code == 69
        door.close()


def test_a_host_that_is_killed_takes_it_along(tmp_path):
    """The host is a process of its own here, and gets no chance to close anything."""
    config = BrokerConfig(socket=os.path.relpath(tmp_path / "door.sock"), token="t", grants=()).to_line()
    host = f"""
import subprocess, sys, time
broker = subprocess.Popen([sys.executable, "-m", "sealtape.broker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
broker.stdin.write({config!r}); broker.stdin.flush()
broker.stdout.readline()
print(broker.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", host], stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        descriptor = os.pidfd_open(pid)
        process.kill()
    assert select.select([descriptor], [], [], 5)[0] == [descriptor]
    os.close(descriptor)
