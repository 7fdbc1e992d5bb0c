"""What the record session gives away: nothing but the calls that were granted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from .conftest import KEY

ASKS = """
    from shop import ask

    def test_it():
        assert ask("hello") == "HELLO"
"""


def test_a_host_without_a_grant_is_refused_and_named(project, provider):
    project.write(
        "tests/test_shop.py",
        """
        from shop import ask_or_fall_back

        def test_it():
            ask_or_fall_back("hello", base_url="https://api.elsewhere.example/v1")
        """,
    )
    done = project.run("record", OPENAI_API_KEY=KEY)
    assert done.returncode == 1, done.stdout
    assert "api.elsewhere.example" in done.stdout
    assert "[tool.sealtape.grants." in done.stdout
    assert project.cassettes == []
    assert provider.calls == []


def test_beyond_the_budget_calls_are_refused_and_the_recordings_before_are_kept(project, provider):
    project.write(
        "tests/test_shop.py",
        """
        from shop import ask_or_fall_back

        def test_it():
            for number in range(6):
                ask_or_fall_back(f"question {number}")
        """,
    )
    done = project.run("record", "--max-calls", "3", OPENAI_API_KEY=KEY)
    assert done.returncode == 77, done.stdout
    assert len(provider.calls) == 3
    assert "--max-calls" in done.stdout
    assert len(project.cassettes) == 3


def test_a_wrong_key_is_a_question_of_its_own_and_keeps_its_true_answer(project, provider):
    project.write(
        "tests/test_shop.py",
        """
        import openai, pytest
        from shop import ask

        def test_wrong_key():
            with pytest.raises(openai.AuthenticationError):
                ask("hello", client={"api_key": "sk-of-mine"})

        def test_right_key():
            assert ask("hello") == "HELLO"
        """,
    )
    done = project.run("record", OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stdout
    assert "sk-of-mine" not in str([call["authorization"] for call in provider.calls])
    assert len(project.cassettes) == 2
    assert project.run("replay").returncode == 0


def test_the_recordings_of_a_failing_test_stay_out(project, provider):
    project.write("tests/test_shop.py", ASKS.replace("HELLO", "SOMETHING ELSE"))
    done = project.run("record", OPENAI_API_KEY=KEY)
    assert done.returncode == 1
    assert "kept out" in done.stdout
    assert project.cassettes == []


def test_while_recording_the_guest_has_neither_network_nor_key(project, provider):
    """Looked at from inside, by the test, and from outside, while the provider answers."""
    project.write(
        "tests/test_shop.py",
        """
        import os, pathlib, socket
        from shop import ask

        def test_it():
            assert ask("hello") == "HELLO"
            assert [name for _, name in socket.if_nameindex()] == ["lo"]
            found = pathlib.Path("/proc").glob("[0-9]*/environ")
            environments = [path.read_bytes() for path in found if os.access(path, os.R_OK)]
            assert environments
            for environment in [*environments, repr(os.environ).encode()]:
                assert b"never-in-the-guest" not in environment
            assert os.environ["OPENAI_API_KEY"].startswith("sk-")
        """,
    )
    seen = {}

    def look() -> None:
        seen["environ"] = {
            path.parent.name: path.read_bytes()
            for path in Path("/proc").glob("[0-9]*/environ")
            if "sealtape" in (path.parent / "cmdline").read_text(errors="replace")
        }
        seen["cmdline"] = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        ids = subprocess.run(["docker", "ps", "-q"], capture_output=True, text=True, check=True).stdout.split()
        if ids:
            inspected = subprocess.run(["docker", "inspect", *ids], capture_output=True, text=True, check=True).stdout
            seen["inspect"] = json.loads(inspected)

    provider.meanwhile = look
    done = project.run("record", OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stdout
    # The one process that was started with the key in its environment is the command itself.
    with_key = [pid for pid, environ in seen["environ"].items() if KEY.encode() in environ]
    assert len(with_key) <= 1
    assert KEY.encode() not in b"".join(seen["cmdline"])
    if project.engine == "docker":
        guests = [c for c in seen["inspect"] if c["HostConfig"]["NetworkMode"] == "none"]
        assert len(seen["inspect"]) - len(guests) == 1, "one container, the broker's, has a network"
        assert len(guests) == 1
        assert set(guests[0]["NetworkSettings"]["Networks"]) == {"none"}
        assert KEY not in json.dumps(seen["inspect"])
    else:
        assert "inspect" not in seen or KEY not in json.dumps(seen["inspect"])


def test_recording_is_refused_in_ci(project, provider):
    project.write("tests/test_shop.py", ASKS)
    done = project.run("record", OPENAI_API_KEY=KEY, CI="true")
    assert done.returncode == 77
    assert "CI" in done.stdout
    assert "--allow-ci" in done.stdout
    assert provider.calls == []
    assert project.run("record", "--allow-ci", OPENAI_API_KEY=KEY, CI="true").returncode == 0


def test_a_missing_key_is_named_before_anything_starts(project, provider):
    project.write("tests/test_shop.py", ASKS)
    done = project.run("record")
    assert done.returncode == 64
    assert "OPENAI_API_KEY" in done.stdout
    assert "passed" not in done.stdout


def test_every_call_is_in_the_audit_log(project, provider):
    project.write("tests/test_shop.py", ASKS)
    project.run("record", OPENAI_API_KEY=KEY)
    lines = (project.root / ".sealtape/audit.jsonl").read_text().splitlines()
    event = json.loads(lines[0])
    assert len(lines) == 1
    assert (event["test"], event["status"], event["grant"]) == ("tests/test_shop.py::test_it", 200, "shop")
    assert event["host"] == "127.0.0.1:18765"


def test_what_the_run_wrote_belongs_to_the_caller(project, provider):
    project.write("tests/test_shop.py", ASKS)
    project.run("record", OPENAI_API_KEY=KEY)
    project.run("replay")
    owners = {path.stat().st_uid for path in project.root.rglob("*")}
    assert owners == {os.getuid()}
    assert not list(project.root.rglob("__pycache__"))
    assert not (project.root / ".pytest_cache").exists()
