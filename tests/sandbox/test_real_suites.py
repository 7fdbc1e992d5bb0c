"""Suites as they are: their plugins, their home, their terminal, what lies about in their checkout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PASSES = "def test_passes():\n    pass\n"

ASYNC = """
import asyncio
import pytest
import uvloop

@pytest.mark.asyncio
async def test_asyncio():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "localhost", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        assert await reader.read() == b""
        writer.close()

def test_uvloop():
    uvloop.run(test_asyncio())
"""

ROOM = """
import locale, mmap, multiprocessing, os, pathlib, socket, sqlite3, time
from multiprocessing import shared_memory

def test_sqlite_in_home():
    with sqlite3.connect(pathlib.Path.home() / "a.db") as database:
        database.execute("create table t (a)")
    database.close()

def test_shared_memory():
    memory = shared_memory.SharedMemory(create=True, size=1 << 20)
    memory.close()
    memory.unlink()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1]) == [1]

def test_names():
    assert socket.gethostbyname(socket.gethostname()).startswith("127.")
    assert socket.gethostbyname("localhost") == "127.0.0.1"
    assert socket.gethostbyaddr("127.0.0.1")[0] == "localhost"
    assert socket.getfqdn()

def test_locale_and_time():
    assert "zwölf".encode(locale.getpreferredencoding()) == "zwölf".encode()
    assert time.localtime().tm_zone == os.environ["ZONE"]
"""


def test_asynchronous_suites(sandbox):
    sandbox.write("test_a.py", ASYNC)
    assert sandbox.run("-q").exit_code == 0


def test_a_guest_has_the_usual_rooms(sandbox, monkeypatch):
    monkeypatch.setenv("TZ", "XYZ-3")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("ZONE", "XYZ")
    sandbox.write("pyproject.toml", '[tool.sealtape]\nenv = ["ZONE"]\n')
    sandbox.write("test_a.py", ROOM)
    assert sandbox.run("-q").exit_code == 0


def test_a_time_limit_of_a_test(sandbox, capfd):
    sandbox.write("test_a.py", "import time\ndef test_hangs():\n    time.sleep(60)\n" + PASSES)
    assert sandbox.run("-q", "--timeout", "1").exit_code == 1
    output = capfd.readouterr().out
    assert "Timeout" in output
    assert "1 failed, 1 passed" in output


def test_random_order_in_several_workers(sandbox, capfd):
    sandbox.write("test_a.py", "".join(f"def test_{n}():\n    pass\n" for n in range(8)))
    assert sandbox.run("-p", "randomly", "-p", "xdist", "-n", "2", "-p", "no:cacheprovider").exit_code == 0
    output = capfd.readouterr().out
    assert "Using --randomly-seed=" in output
    assert "8 passed" in output


def test_what_lies_about_in_a_checkout_does_no_harm(sandbox):
    """An environment of the host's, and bytecode of a source that is not there any more."""
    for name in (".venv/pyvenv.cfg", ".nox/tests/pyvenv.cfg"):
        sandbox.write(name, "home = /nowhere\n")
    sandbox.write(".venv/lib/test_b.py", "raise SystemExit('of the host')\n")
    sandbox.write("helper.py", "VALUE = 1\n")
    sandbox.write("test_a.py", "import helper\ndef test_it():\n    assert helper.VALUE == 2\n")
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(sandbox.root)]
    subprocess.run(compiled, check=False, stdout=subprocess.DEVNULL)
    sandbox.write("helper.py", "VALUE = 2\n")
    before = {path: path.read_bytes() for path in sandbox.root.rglob("*") if path.is_file()}
    assert sandbox.run("-q").exit_code == 0
    assert {path: path.read_bytes() for path in sandbox.root.rglob("*") if path.is_file()} == before


def shown(sandbox, *args, terminal, **env):
    """What the command prints, on a terminal of its own or into a pipe."""
    command = [sys.executable, "-m", "sealtape", "replay", "--engine", sandbox.engine.name, *args]
    hidden = ("NO_COLOR", "FORCE_COLOR", "PY_COLORS", "COLUMNS", "CI")
    kept = {**{k: v for k, v in os.environ.items() if k not in hidden}, "TERM": "xterm", **env}
    if not terminal:
        return subprocess.run(command, cwd=sandbox.root, env=kept, capture_output=True, check=False).stdout.decode()
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=sandbox.root, env=kept, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            output += data
        process.wait()
    os.close(ours)
    return output.decode()


@pytest.mark.parametrize(
    ("terminal", "args", "env", "coloured"),
    [
        (True, (), {}, True),
        (False, (), {}, False),
        (True, (), {"NO_COLOR": "1"}, False),
        (False, (), {"FORCE_COLOR": "1"}, True),
        (False, ("--color=yes",), {}, True),
        (True, ("--color=no",), {}, False),
    ],
)
@pytest.mark.parametrize("engine", ["bubblewrap"], indirect=True)  # the host's side decides it
def test_colour(sandbox, terminal, args, env, coloured):
    sandbox.write("test_a.py", PASSES)
    output = shown(sandbox, "-q", *args, terminal=terminal, **env)
    assert "1 passed" in output
    passed = output[output.index("1 passed") - 12 : output.index("1 passed")]
    assert ("\x1b[" in passed) == coloured, repr(output)


@pytest.mark.parametrize("engine", ["bubblewrap"], indirect=True)
def test_the_width_of_the_terminal(sandbox):
    sandbox.write("test_a.py", PASSES)
    output = shown(sandbox, terminal=True, COLUMNS="60", NO_COLOR="1")
    line = next(line.rstrip() for line in output.splitlines() if "test session starts" in line)
    assert len(line) == 60
