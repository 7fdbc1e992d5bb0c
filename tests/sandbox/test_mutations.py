"""Each hardening measure taken away in turn: something notices, nothing runs. What nobody can notice is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.utils.proxy import ProxyConfig

from sealtape import guest
from sealtape.errors import EngineError
from sealtape.sandbox import _bubblewrap, _docker
from sealtape.sandbox import policy as policies
from sealtape.sandbox.policy import OUT, staged

# What is no measure, or one that no check at the start of a run can miss.
NOT_NOTICED = {
    "docker": {
        "command": "what runs",
        "entrypoint": "an image with an entry point of its own: what that did would be over before the lock",
        "environment": "what the tests need",
        "working_dir": "what the tests need",
        "shm_size": "what the tests need",
        "sysctls": "what the tests need",
        "hostname": "what the tests need",
        "stdin_open": "without it there is no plan, and no run",
        "security_opt: label=disable": "what the project's mount needs where SELinux is on",
        "ipc_mode": "the daemon's own default is the same; another one is noticed, see below",
        "init": "reaps the processes that tests leave",
    },
    "bubblewrap": {
        "--die-with-parent": "shows when the parent dies: test_endings.py",
        "--new-session": "the host starts bubblewrap in a session of its own already",
        "--hostname": "what the tests need",
        "--clearenv": "the host starts bubblewrap with an empty environment already",
        "--setenv": "what the tests need",
        "--symlink": "what the tests need",
        "--chdir": "what the tests need",
        "--cap-drop": "bubblewrap leaves an ordinary uid none; an added one is noticed: test_broken_seal.py",
    },
}
ARGUMENTS = {
    "--setenv": 2,
    "--ro-bind": 2,
    "--bind": 2,
    "--symlink": 2,
    "--perms": 3,  # with the folder it is for
    "--tmpfs": 1,
    "--remount-ro": 1,
} | {
    "--uid": 1,
    "--gid": 1,
    "--cap-drop": 1,
    "--hostname": 1,
    "--proc": 1,
    "--dev": 1,
    "--chdir": 1,
}


def split(arguments):
    """Bubblewrap's options, each with what belongs to it."""
    options = []
    position = 0
    while position < len(arguments):
        end = position + 1 + ARGUMENTS.get(arguments[position], 0)
        options.append(arguments[position:end])
        position = end
    return options


def mutations_of_bubblewrap(policy):
    with staged(policy) as ready:
        options = split(_bubblewrap.bwrap_arguments(ready))
        stage = str(ready.stage)
    for index, option in enumerate(options):
        name = " ".join(option).replace(stage, "STAGE")

        def without(arguments, index=index):
            arguments[:] = [
                word for option in split(arguments)[:index] + split(arguments)[index + 1 :] for word in option
            ]

        def writable(arguments, index=index):
            place = sum(len(option) for option in split(arguments)[:index])
            arguments[place] = "--bind"

        if option[0] not in NOT_NOTICED["bubblewrap"]:
            yield f"no {name}", without
        if option[0] == "--ro-bind" and "STAGE" not in name:
            yield f"writable {name}", writable


def mutations_of_docker(policy):
    with staged(policy) as ready:
        arguments = _docker.docker_arguments(ready)
    for key, value in arguments.items():
        if key in NOT_NOTICED["docker"] or key == "use_config_proxy":
            continue
        if isinstance(value, (list, dict)) and key != "healthcheck":
            for index, part in enumerate(list(value)):
                label = part["Target"] if isinstance(part, dict) else part
                if f"{key}: {label}" in NOT_NOTICED["docker"]:
                    continue

                def without(arguments, key=key, index=index):
                    parts = list(arguments[key])
                    gone = parts.pop(index)
                    arguments[key] = {k: v for k, v in arguments[key].items() if k != gone} if key == "tmpfs" else parts

                yield f"no {key} {label}", without
                if key == "mounts" and part["ReadOnly"]:

                    def writable(arguments, index=index):
                        arguments["mounts"][index]["ReadOnly"] = False

                    yield f"writable {label}", writable
        else:
            yield f"no {key}", lambda arguments, key=key: arguments.pop(key)
    for key, value in {"ipc_mode": "host", "pid_mode": "host", "uts_mode": "host", "privileged": True}.items():
        yield f"{key} {value}", lambda arguments, key=key, value=value: arguments.update({key: value})


@pytest.fixture
def project(sandbox):
    """Something of everything that a policy covers."""
    sandbox.write("test_a.py", f"import pathlib\ndef test_marks():\n    pathlib.Path('{OUT}/mark').touch()\n")
    sandbox.write(".env", "X=1\n")
    sandbox.write("private/.env.d/x", "x")
    sandbox.write(".git/config", "[core]\n")
    sandbox.write("pyproject.toml", "[tool.sealtape]\nmask = ['.env', '.env.d']\n")
    assert sandbox.run().exit_code == 0
    (sandbox.out / "mark").unlink()
    return sandbox


def noticed(sandbox):
    """The checks that failed, or the engine's refusal; no test ran in either case."""
    try:
        outcome = sandbox.run()
    except EngineError as error:
        return [str(error)]
    finally:
        ran = (sandbox.out / "mark").exists()
        (sandbox.out / "mark").unlink(missing_ok=True)
    assert ran == (outcome.exit_code == 0)
    if outcome.exit_code == 0:
        return []
    assert outcome.exit_code == 70
    return [check.name for check in outcome.verdict.failures]


def test_every_measure_is_missed(project, monkeypatch):
    bubblewrap = project.engine.name == "bubblewrap"
    module, function = (_bubblewrap, "bwrap_arguments") if bubblewrap else (_docker, "docker_arguments")
    original = getattr(module, function)
    mutations = dict((mutations_of_bubblewrap if bubblewrap else mutations_of_docker)(project.policy()))
    assert len(mutations) >= 30
    unnoticed = []
    for name, change in mutations.items():

        def changed(policy, change=change):
            arguments = original(policy)
            change(arguments)
            return arguments

        with monkeypatch.context() as patch:
            patch.setattr(module, function, changed)
            if not noticed(project):
                unnoticed.append(name)
    assert unnoticed == []


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("    problem = _lock()\n", "io_uring"),
        ("        resource.setrlimit(getattr(resource, name), (limit, limit))\n", "limits"),
    ],
)
def test_what_the_entry_does_is_missed(project, monkeypatch, tmp_path, line, check):
    copy = Path("/var/tmp", f"{project.root.name} guest")  # noqa: S108
    shutil.copytree(Path(guest.__file__).parent, copy)
    try:
        entry = copy / "entry.py"
        text = entry.read_text()
        assert line in text
        indent = line[: len(line) - len(line.lstrip())]
        entry.write_text(text.replace(line, f"{indent}problem = ''\n"))
        monkeypatch.setattr(policies, "guest", SimpleNamespace(__file__=str(copy / "__init__.py")))
        assert check in noticed(project)
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_a_proxys_password_of_the_client_is_missed(sandbox, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://user:pass@proxy.invalid")
    api = sandbox.engine._client.api
    monkeypatch.setattr(api, "_proxy_configs", ProxyConfig.from_dict({"httpsProxy": "http://user:pass@proxy.invalid"}))
    sandbox.write("test_a.py", "import os\ndef test_a():\n    assert 'HTTPS_PROXY' not in os.environ\n")
    assert sandbox.run().exit_code == 0
    original = _docker.docker_arguments
    monkeypatch.setattr(_docker, "docker_arguments", lambda policy: {**original(policy), "use_config_proxy": True})
    assert noticed(sandbox) == ["proxy passwords"]
