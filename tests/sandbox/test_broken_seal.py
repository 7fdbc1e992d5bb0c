"""Seals broken on purpose: the verdict names what is open, the exit code is 70, and no test runs."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import docker.types
import pytest

from sealtape.sandbox import _bubblewrap, _canaries, _docker
from sealtape.sandbox.policy import OUT

KEY = "sk-a-real-key-of-the-host"


def _docker_socket(arguments):
    arguments["mounts"].append(docker.types.Mount("/run/docker.sock", "/var/run/docker.sock", type="bind"))


def _docker_network(arguments):
    arguments["network_mode"] = "bridge"


def _docker_key(arguments):
    arguments["environment"]["OPENAI_API_KEY"] = KEY


def _docker_writable(arguments):
    arguments["read_only"] = False
    arguments["user"] = "0:0"


def _docker_capabilities(arguments):
    arguments["cap_drop"] = []
    arguments["user"] = "0:0"


def _docker_host_pids(arguments):
    arguments["pid_mode"] = "host"


def _docker_device(arguments):
    arguments["devices"] = ["/dev/zero:/dev/extra"]


def _bwrap_socket(arguments):
    place = len(arguments) - 6
    arguments[place:place] = ["--bind", str(Path("/var/run/docker.sock").resolve()), "/run/docker.sock"]


def _bwrap_network(arguments):
    arguments.remove("--unshare-net")


def _bwrap_key(arguments):
    arguments += ["--setenv", "OPENAI_API_KEY", KEY]


def _bwrap_writable(arguments):
    place = len(arguments) - 1 - arguments[::-1].index("--remount-ro")
    del arguments[place : place + 2]


def _bwrap_capabilities(arguments):
    place = arguments.index("--cap-drop")
    arguments[place : place + 2] = ["--cap-add", "CAP_NET_ADMIN"]


def _bwrap_host_pids(arguments):
    arguments.remove("--unshare-pid")


def _bwrap_proc_sys(arguments):
    place = arguments.index("/proc/sys") - 1
    del arguments[place : place + 3]


BREAKS = {
    "docker": {
        "socket": (_docker_socket, "bind mounts", "unix sockets"),
        "network": (_docker_network, "network", "network interfaces"),
        "key": (_docker_key, "keys in docker inspect", "keys"),
        "writable root": (_docker_writable, "root", "root file system"),
        "capabilities": (_docker_capabilities, "dropped capabilities", "capabilities"),
        "pids": (_docker_host_pids, "host's namespaces", "other processes"),
        "device": (_docker_device, "devices passed in", None),
    },
    "bubblewrap": {
        "socket": (_bwrap_socket, None, "unix sockets"),
        "network": (_bwrap_network, "net namespace", "network interfaces"),
        "key": (_bwrap_key, None, "keys"),
        "writable root": (_bwrap_writable, None, "root file system"),
        "capabilities": (_bwrap_capabilities, None, "capabilities"),
        "pids": (_bwrap_host_pids, "pid namespace", "other processes"),
        "/proc/sys": (_bwrap_proc_sys, None, "kernel settings"),
    },
}
CASES = [(engine, name) for engine, breaks in BREAKS.items() for name in breaks]


@pytest.fixture
def broken(monkeypatch):
    """Break one translation of the policy."""

    def breaking(module, function, change):
        original = getattr(module, function)

        def changed(policy):
            arguments = original(policy)
            change(arguments)
            return arguments

        monkeypatch.setattr(module, function, changed)

    def apply(engine, change):
        if engine == "docker":
            breaking(_docker, "docker_arguments", change)
        else:
            breaking(_bubblewrap, "bwrap_arguments", change)

    return apply


@pytest.fixture
def marker(sandbox):
    """A test that leaves a mark if it runs; first it does, in a sealed run."""
    sandbox.write("test_a.py", f"import pathlib\ndef test_marks():\n    pathlib.Path('{OUT}/mark').touch()\n")
    assert sandbox.run(secrets={"OPENAI_API_KEY": KEY}).exit_code == 0
    mark = sandbox.out / "mark"
    mark.unlink()
    sandbox.verdicts.clear()
    return mark


@pytest.mark.parametrize(("engine", "name"), CASES, indirect=["engine"])
@pytest.mark.parametrize("inspected", [True, False], ids=["inspected", "probed only"])
def test_a_broken_seal_runs_no_test(sandbox, marker, broken, monkeypatch, capfd, *, name, inspected):
    change, engine_check, probe = BREAKS[sandbox.engine.name][name]
    broken(sandbox.engine.name, change)
    expected = engine_check if inspected else probe
    if expected is None:
        expected = engine_check or probe
    elif not inspected:
        _blindfold(sandbox.engine, monkeypatch)
    outcome = sandbox.run(secrets={"OPENAI_API_KEY": KEY})
    assert outcome.exit_code == 70
    assert not marker.exists()
    assert expected in {check.name for check in outcome.verdict.failures}
    assert sandbox.verdicts == [outcome.verdict]
    assert outcome.verdict.line().startswith(f"not sealed   {sandbox.engine.name} · ")
    assert "test session starts" not in capfd.readouterr().out


def _blindfold(engine, monkeypatch):
    """The engine's inspection finds nothing wrong: the guest's own probes must."""
    original = type(engine).start

    @contextmanager
    def start(self, policy):
        with original(self, policy) as guest:
            inspect = guest.inspect
            guest.inspect = lambda: [check for check in inspect() if check.ok]
            yield guest

    monkeypatch.setattr(type(engine), "start", start)


def test_with_a_network_no_probe_sends_a_packet(sandbox, broken, monkeypatch):
    _blindfold(sandbox.engine, monkeypatch)
    broken(sandbox.engine.name, BREAKS[sandbox.engine.name]["network"][0])
    found = {check.name: check.found for check in sandbox.run().verdict.checks}
    for name in ("TCP outward", "UDP outward", "IPv6 outward", "cloud metadata", "DNS", "host's loopback"):
        assert found[name] == "not tried: it would have sent a packet"


def test_a_canary_that_the_host_cannot_reach_is_no_proof(sandbox, marker, monkeypatch):
    real = _canaries.Canaries
    monkeypatch.setattr(_canaries, "Canaries", lambda **values: real(**{**values, "tcp": ("127.0.0.1", 1)}))
    outcome = sandbox.run()
    assert outcome.exit_code == 70
    assert [check.name for check in outcome.verdict.failures] == ["host's loopback, from outside"]
    assert not marker.exists()


@pytest.mark.usefixtures("marker")
def test_a_key_in_a_project_file_is_named(sandbox):
    sandbox.write("conf/local.toml", f"key = '{KEY}'\n")
    outcome = sandbox.run(secrets={"OPENAI_API_KEY": KEY})
    assert outcome.exit_code == 70
    (failure,) = outcome.verdict.failures
    assert failure.found == "OPENAI_API_KEY in conf/local.toml"
    assert failure.closes == "adding 'conf/local.toml' to mask in [tool.sealtape]"
    sandbox.write("pyproject.toml", "[tool.sealtape]\nmask = ['conf/local.toml']\n")
    assert sandbox.run(secrets={"OPENAI_API_KEY": KEY}).exit_code == 0
