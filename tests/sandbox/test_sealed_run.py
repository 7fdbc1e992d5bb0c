"""What a user of a sealed run sees: the verdict, pytest's output, the exit code, nothing left."""

from __future__ import annotations

import os
import stat
import time

import pytest

from sealtape.errors import EngineError
from sealtape.sandbox.policy import OUT

PASSES = "def test_passes():\n    pass\n"


def test_the_verdict_comes_before_pytest(sandbox, capfd):
    sandbox.write("test_a.py", PASSES)
    outcome = sandbox.run("-q")
    assert outcome.exit_code == 0
    count = sum(check.layer == "probe" for check in outcome.verdict.checks)
    assert count >= 25
    expected = f"sealed   {sandbox.engine.name} · no network · {count}/{count} probes · no key · read-only project"
    assert [verdict.line() for verdict in sandbox.verdicts] == [expected]
    assert "1 passed" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def test_fails():\n    assert False\n", 1),
        ("", 5),
        ("import pytest\ndef test_ends():\n    pytest.exit('no', returncode=3)\n", 3),
    ],
)
def test_the_exit_code_is_pytests(sandbox, text, code):
    sandbox.write("test_a.py", text)
    assert sandbox.run().exit_code == code


def test_arguments_arrive_intact(sandbox, capfd):
    sandbox.write(
        "test_a.py",
        """
        import pytest

        @pytest.mark.parametrize("text", ["x y"])
        def test_parse(text): pass

        def test_slow(): pass
        """,
    )
    assert sandbox.run("-v", "-k", "parse and not slow", "test_a.py::test_parse[x y]").exit_code == 0
    output = capfd.readouterr().out
    assert "test_parse[x y] PASSED" in output
    assert "test_slow" not in output


def test_stdout_and_stderr_stay_apart(sandbox, capfd):
    sandbox.write(
        "test_a.py",
        """
        import os
        def test_both():
            os.write(1, b"to stdout\\n")
            os.write(2, b"to stderr\\n")
        """,
    )
    sandbox.run("-s")
    output = capfd.readouterr()
    assert "to stdout" in output.out
    assert "to stdout" not in output.err
    assert "to stderr" in output.err


def test_output_is_streamed(sandbox, monkeypatch):
    """The guest waits for a file that the host writes only when it has seen the guest's first line."""
    sandbox.write(
        "test_a.py",
        f"""
        import os, pathlib, time
        def test_waits():
            os.write(1, b"first line\\n")
            deadline = time.monotonic() + 20
            while not pathlib.Path("{OUT}/seen").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        """,
    )

    class Sink:
        def write(self, data):
            if b"first line" in data:
                (sandbox.out / "seen").touch()

        def flush(self):
            pass

        @property
        def buffer(self):
            return self

    monkeypatch.setattr("sys.stdout", Sink())
    assert sandbox.run("-s").exit_code == 0


def test_what_the_guest_writes_belongs_to_the_caller(sandbox):
    sandbox.write(
        "test_a.py",
        f"""
        import pathlib
        def test_writes():
            pathlib.Path("{OUT}/folder").mkdir()
            pathlib.Path("{OUT}/folder/file").write_text("x")
        """,
    )
    assert sandbox.run().exit_code == 0
    for path in (sandbox.out, sandbox.out / "folder", sandbox.out / "folder" / "file"):
        assert path.stat().st_uid == os.getuid()
    assert sorted(path.name for path in sandbox.root.iterdir()) == ["pyproject.toml", "test_a.py"]


def test_an_ordinary_test_suite_finds_what_it_needs(sandbox):
    sandbox.write(
        "test_a.py",
        """
        import asyncio, getpass, multiprocessing, os, pathlib, socket, subprocess, sys, tempfile, threading

        def test_home_and_user():
            assert getpass.getuser() == "sealtape"
            path = pathlib.Path("~/x").expanduser()
            path.write_text("x")
            with tempfile.NamedTemporaryFile() as file:
                file.write(b"x")

        def test_asyncio():
            asyncio.run(asyncio.sleep(0))

        def test_a_server_on_localhost():
            for address in ("127.0.0.1", "localhost", "::1"):
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                with socket.create_server((address, 0), family=family) as server:
                    with socket.create_connection((address, server.getsockname()[1])):
                        pass

        def test_children():
            assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout == "1\\n"
            threading.Thread(target=print).start()
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]

        def test_no_descriptor_is_inherited():
            assert sys.stdin.read() == ""
        """,
    )
    assert sandbox.run("-s").exit_code == 0


def test_xdist_works(sandbox, capfd):
    sandbox.write("test_a.py", PASSES)
    assert sandbox.run("-n", "2").exit_code == 0
    assert "1 passed" in capfd.readouterr().out


def test_time_is_limited(sandbox, remains, capfd):
    sandbox.write("test_a.py", "import time\ndef test_hangs():\n    time.sleep(60)\n")
    start = time.monotonic()
    assert sandbox.run(timeout=2).exit_code == 130
    assert time.monotonic() - start < 15
    assert "KeyboardInterrupt" in capfd.readouterr().out
    assert not remains()


def test_another_version_in_the_guest_is_one_sentence(sandbox, monkeypatch):
    sandbox.write("test_a.py", PASSES)
    monkeypatch.setattr("sealtape.sandbox.launch.version", lambda _name: "99.0")
    with pytest.raises(EngineError, match=r"has sealtape 0\.1\.0, the host has 99\.0") as caught:
        sandbox.run()
    assert caught.value.tip == "install sealtape==99.0 in both"


def test_files_of_the_host_are_not_there(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    assert stat.S_ISREG(secret.stat().st_mode)
    sandbox.write("test_a.py", f"import os\ndef test_absent():\n    assert not os.path.exists({str(secret)!r})\n")
    assert sandbox.run().exit_code == 0
