"""The broker's socket: the one thing outside that a record session's guest can talk to."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sealtape.config import load
from sealtape.sandbox.launch import launch
from sealtape.sandbox.policy import OUT, make_policy

# A broker that answers each connection with what it was told on stdin, or with a word from a server of the host.
BROKER = """
import json, os, socket, sys
told = json.loads(sys.stdin.readline())
os.umask(0o077)
with socket.socket(socket.AF_UNIX) as server:
    server.bind(told["socket"])
    server.listen(1)
    print("ready", flush=True)
    with server.accept()[0] as connection:
        try:
            with socket.create_connection(("127.0.0.1", told["port"]), timeout=5) as outside:
                connection.sendall(outside.recv(99))
        except OSError as error:
            connection.sendall(type(error).__name__.encode())
"""
TEST = f"""
import pathlib, socket, pytest

def test_door():
    with socket.socket(socket.AF_UNIX) as door:
        door.connect("/sealtape/door/broker.sock")
        pathlib.Path("{OUT}/heard").write_bytes(door.recv(99))

def test_the_door_cannot_be_replaced():
    with pytest.raises(OSError):
        pathlib.Path("/sealtape/door/broker.sock").unlink()
"""
SECRET = "sk-told-on-stdin-only"


@contextmanager
def server_with_a_word():
    """A server on the host's loopback; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            while True:
                with server.accept()[0] as connection:
                    if connection.getpeername()[1] == closer.getsockname()[1]:
                        return
                    connection.sendall(b"a word")

        thread = threading.Thread(target=answer)
        with socket.socket() as closer:
            closer.bind(("127.0.0.1", 0))
            thread.start()
            yield server.getsockname()[1]
            closer.connect(server.getsockname())
            thread.join()


@pytest.mark.parametrize("host_loopback", [True, False])
def test_the_guest_reaches_the_broker_and_through_it_what_that_may_reach(sandbox, host_loopback):
    sandbox.write("test_door.py", TEST)
    with (
        server_with_a_word() as port,
        sandbox.engine.open_door(["-c", BROKER], host_loopback=host_loopback) as (broker, mount, folder),
    ):
        told = {"socket": f"{folder}/broker.sock", "port": port, "key": SECRET}
        broker.send(json.dumps(told).encode() + b"\n")
        assert next(broker.output()) == ("out", b"ready\n")
        settings = load(sandbox.root, {})
        policy = make_policy(
            settings, pytest_args=[], env={}, out=sandbox.out, secrets={"KEY": SECRET}, extra_mounts=[mount]
        )
        outcome = launch(sandbox.engine, policy, announce=sandbox.verdicts.append, timeout=60)
        assert broker.wait(10) == 0
    assert outcome.exit_code == 0, outcome.verdict.line()
    # A sidecar has a loopback of its own; a process of the host has the host's.
    reached = host_loopback or sandbox.engine.name == "bubblewrap"
    assert (sandbox.out / "heard").read_text() == ("a word" if reached else "ConnectionRefusedError")
    volumes = subprocess.run(["docker", "volume", "ls", "-q"], capture_output=True, text=True, check=True).stdout
    assert mount.source not in volumes.split()
    assert not Path(mount.source).exists()


def test_a_door_that_the_policy_does_not_name_is_a_way_out(sandbox):
    sandbox.write("test_door.py", TEST)
    with sandbox.engine.open_door(["-c", BROKER], host_loopback=False) as (broker, mount, folder):
        broker.send(json.dumps({"socket": f"{folder}/broker.sock", "port": 1}).encode() + b"\n")
        assert next(broker.output()) == ("out", b"ready\n")
        policy = replace(sandbox.policy(), mounts=(mount,), door=None)
        outcome = launch(sandbox.engine, policy, announce=sandbox.verdicts.append, timeout=60)
    assert outcome.exit_code == 70
    assert [check.name for check in outcome.verdict.failures] == ["unix sockets"]


def test_what_the_broker_was_told_is_not_in_docker_inspect(engines):
    with engines["docker"].open_door(["-c", "input(); input()"], host_loopback=False) as (broker, _mount, _folder):
        broker.send(f"{SECRET}\n".encode())
        running = ["docker", "ps", "-q", "--filter", "name=sealtape-broker"]
        names = subprocess.run(running, capture_output=True, text=True, check=True).stdout.split()
        assert names
        facts = subprocess.run(["docker", "inspect", *names], capture_output=True, text=True, check=True).stdout
        assert "sealtape-broker" in facts
        assert SECRET not in facts
