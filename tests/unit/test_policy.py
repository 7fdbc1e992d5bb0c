"""What a guest gets: the policy, the walk over the project, git, and both engines' translations."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from sealtape import guest
from sealtape.config import Settings
from sealtape.errors import EngineError
from sealtape.sandbox import engine as engines
from sealtape.sandbox._bubblewrap import bwrap_arguments, guest_environment
from sealtape.sandbox._docker import docker_arguments
from sealtape.sandbox.git import find_repository, scrub
from sealtape.sandbox.policy import Mount, make_policy, staged
from sealtape.sandbox.rundir import is_left_over, run_folder
from sealtape.sandbox.survey import survey


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "a project é"
    root.mkdir()
    return root


def policy_of(project, *, env=None, args=(), secrets=None, settings=None, mounts=()):
    settings = settings or Settings(root=project)
    return make_policy(
        settings, pytest_args=args, env=env or {}, out=project.parent, secrets=secrets or {}, extra_mounts=mounts
    )


def test_the_environment_is_a_list_of_what_is_allowed(project, monkeypatch):
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "HTTPS_PROXY", "LANGUAGE_MODEL"):
        monkeypatch.setenv(name, "x")
    for name in ("LANG", "LC_ALL", "TZ", "CI", "COLUMNS", "PYTEST_ADDOPTS", "MINE"):
        monkeypatch.setenv(name, f"the host's {name}")
    env = policy_of(project, env={"COLUMNS": "80"}, settings=Settings(root=project, env=("MINE",))).env
    assert {"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "HTTPS_PROXY", "LANGUAGE_MODEL"}.isdisjoint(env)
    assert {name: env[name] for name in ("LANG", "LC_ALL", "TZ", "CI", "PYTEST_ADDOPTS", "MINE")} == {
        name: f"the host's {name}" for name in ("LANG", "LC_ALL", "TZ", "CI", "PYTEST_ADDOPTS", "MINE")
    }
    assert env["COLUMNS"] == "80"
    assert (env["HOME"], env["USER"], env["LOGNAME"]) == ("/home/sealtape", "sealtape", "sealtape")


def test_the_policy_is_frozen_and_does_not_show_secrets(project):
    policy = policy_of(project, secrets={"KEY": "sk-0123456789", "SHORT": "x"})
    assert "sk-0123456789" not in repr(policy)
    assert dict(policy.secrets) == {"KEY": "sk-0123456789"}
    with pytest.raises(FrozenInstanceError):
        policy.uid = 0


def test_the_command(project):
    assert policy_of(project, args=["-k", "a b"]).command == (
        *("-m", "pytest", "-p", "sealtape", "-o", "cache_dir=/tmp/pytest-cache"),
        *("-k", "a b"),
    )
    assert "-o" not in policy_of(project, args=["-p", "no:cacheprovider"]).command


def test_a_guest_is_never_root(project):
    policy = policy_of(project)
    assert policy.uid == (os.getuid() or 1000)


def test_the_walk(project):
    def write(name, text="x"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    for name in (".env", "deep/er/.env.local", "kept.py", "node_modules/x/.env", "venv/pyvenv.cfg", "venv/.env"):
        write(name)
    write("keys/private.pem")
    write("real.txt")
    (project / "link" / "x").mkdir(parents=True)
    (project / "link" / ".env").symlink_to("../real.txt")
    (project / "link" / "x" / ".env").symlink_to("/etc/passwd")
    write(".git/.env")
    os.mkfifo(project / "pipe")
    write("leak.toml", "key = 'sk-0123456789'")
    write("deep/.env.more", "key = 'sk-0123456789'")
    with socket.socket(socket.AF_UNIX) as sock:
        previous = Path.cwd()
        os.chdir(project)
        try:
            sock.bind("door.sock")
        finally:
            os.chdir(previous)
    found = survey(project, (".env", ".env.*", "keys"), {"KEY": "sk-0123456789"})
    assert found.masked_files == (".env", "deep/.env.more", "deep/er/.env.local", "real.txt")
    assert found.masked_folders == ("keys",)
    assert found.doors == ("door.sock", "pipe")
    assert found.environments == ("venv",)
    assert found.with_secrets == (("leak.toml", "KEY"),)


def test_a_mask_can_name_a_path(project):
    for name in ("a/secret.txt", "b/secret.txt"):
        (project / name).parent.mkdir()
        (project / name).write_text("x")
    assert survey(project, ("a/*.txt",), {}).masked_files == ("a/secret.txt",)


CONFIG = """\
[core]
\trepositoryformatversion = 0
\tbare = false
\tsshCommand = ssh -i /home/x/.ssh/key-of-x
\tworktree = ../../elsewhere
[remote "origin"]
\turl = https://user:pass-word@github.com/a/b
\tfetch = +refs/heads/*:refs/remotes/origin/*
\tproxy = http://u:pass-word@proxy
[remote "ssh"]
\turl = git@github.com:a/b
[http "https://github.com/"]
\textraheader = AUTHORIZATION: basic pass-word
[credential]
\thelper = store --file=pass-word
[include]
\tpath = /pass-word
[url "https://pass-word@github.com/"]
\tinsteadOf = https://github.com/
[branch "main"] remote = origin
\tmerge = refs/heads/ma\\
in
[user]
\ttoken = pass-word
\tname = X
"""


def test_a_scrubbed_configuration():
    text = scrub(CONFIG)
    assert "pass-word" not in text
    assert ".ssh" not in text
    assert "elsewhere" not in text
    for line in (
        "[core]",
        "\tbare = false",
        '[remote "origin"]',
        "\turl = https://github.com/a/b",
        "\tfetch = +refs/heads/*:refs/remotes/origin/*",
        "\turl = git@github.com:a/b",
        '[branch "main"]',
        "\tremote = origin",
        "\tmerge = refs/heads/main",
        "\tname = X",
    ):
        assert line in text.splitlines()


def test_git_agrees_with_the_scrubbed_configuration(tmp_path):
    (tmp_path / "config").write_text(scrub(CONFIG))
    command = ["git", "config", "--file", str(tmp_path / "config"), "--get", "branch.main.merge"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "refs/heads/main\n"


def test_submodules_and_worktrees_are_scrubbed_too(project):
    for name in (".git/config", ".git/modules/sub/deep/config", ".git/worktrees/w/config.worktree"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(CONFIG)
    files = find_repository(project).files
    assert sorted(files) == [".git/config", ".git/modules/sub/deep/config", ".git/worktrees/w/config.worktree"]
    assert not any("pass-word" in text for text in files.values())


def test_a_relative_git_link_is_written_anew(project):
    (project.parent / "common" / "modules" / "x").mkdir(parents=True)
    (project / ".git").write_text("gitdir: ../common/modules/x\n")
    repository = find_repository(project)
    own = project.parent / "common" / "modules" / "x"
    assert repository.files == {".git": f"gitdir: {own}\n"}
    assert repository.outside == (own,)


def test_the_socket_of_gits_file_watcher_is_covered(project):
    (project / ".git" / "objects").mkdir(parents=True)
    os.mkfifo(project / ".git" / "fsmonitor--daemon.ipc")
    assert policy_of(project).empty_files == (".git/fsmonitor--daemon.ipc",)


def test_a_project_without_git(project):
    assert find_repository(project).files == {}


def test_docker_arguments(project):
    (project / ".env").write_text("KEY=x")
    (project / ".venv").mkdir()
    (project / ".venv" / "pyvenv.cfg").touch()
    with staged(policy_of(project, secrets={"KEY": "sk-0123456789"})) as policy:
        arguments = docker_arguments(policy)
    mounts = {mount["Target"]: mount for mount in arguments["mounts"]}
    assert mounts["/project"]["Source"] == str(project)
    assert [target for target, mount in mounts.items() if not mount["ReadOnly"]] == ["/sealtape/out"]
    assert "/project/.env" in mounts
    assert arguments["tmpfs"]["/project/.venv"].startswith("ro,")
    assert arguments["network_mode"] == "none"
    assert arguments["read_only"] is True
    assert arguments["cap_drop"] == ["ALL"]
    assert arguments["use_config_proxy"] is False
    assert "sk-0123456789" not in json.dumps(arguments)


def test_bwrap_arguments(project):
    (project / ".env").write_text("KEY=x")
    (project / "secrets").mkdir()
    settings = Settings(root=project, mask=(".env", "secrets"))
    with staged(policy_of(project, settings=settings, env={"X": "1"})) as policy:
        arguments = bwrap_arguments(policy)
    text = " ".join(arguments)
    for name in ("user", "net", "pid", "ipc", "uts"):
        assert f"--unshare-{name}" in arguments
    assert f"--ro-bind {project} {project}" in text
    assert f"empty {project}/.env" in text
    assert f"--tmpfs {project}/secrets" in text
    assert "--setenv X 1" in text
    writable = [arguments[index + 2] for index, argument in enumerate(arguments) if argument == "--bind"]
    assert writable == ["/sealtape/out"]
    assert guest_environment(policy)["PATH"].startswith(str(Path(sys.executable).parent))
    shown = {arguments[index + 2] for index, argument in enumerate(arguments) if argument == "--ro-bind"}
    assert str(Path.home()) not in shown
    assert "/" not in shown
    assert not any(path.startswith("/sys") for path in shown)


def test_a_script_in_a_shared_folder_does_not_show_that_folder(project, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/tmp", str(Path.home()), "/", *sys.path])  # noqa: S108
    with staged(policy_of(project)) as policy:
        arguments = bwrap_arguments(policy)
    shown = {arguments[index + 2] for index, argument in enumerate(arguments) if argument == "--ro-bind"}
    assert shown.isdisjoint({"/tmp", str(Path.home()), "/"})  # noqa: S108


def test_the_door_is_known_by_its_mount(project):
    door = Mount(source="volume", target="/sealtape/door", kind="volume")
    assert policy_of(project, mounts=[door]).door == "/sealtape/door"
    assert policy_of(project).door is None


def test_staged_files_are_gone_afterwards(project):
    with staged(policy_of(project)) as policy:
        stage = policy.stage
        hosts = next(mount for mount in policy.binds("/x") if mount.target == "/etc/hosts")
        assert "127.0.0.1 localhost" in Path(hosts.source).read_text()
    assert not stage.exists()


def test_a_run_folder_is_left_over_once_its_owner_is_dead():
    with run_folder() as mine:
        command = (
            "import sys, sealtape.sandbox.rundir as r\n"
            "with r.run_folder() as folder: print(folder, flush=True); sys.stdin.read()"
        )
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", command], stdin=pipe, stdout=pipe, text=True) as process:
            theirs = Path(process.stdout.readline().strip())
            assert not is_left_over(theirs)
            process.kill()
        assert is_left_over(theirs)
        assert not is_left_over(mine)


def test_no_engine_is_one_message(monkeypatch):
    class Unusable:
        def __init__(self, reason):
            self._reason = reason

        def usable(self):
            return self._reason

    monkeypatch.setattr(engines, "_make", lambda name: Unusable(f"no {name} today"))
    with pytest.raises(EngineError) as caught:
        engines.find_engine("auto")
    assert "docker: no docker today" in caught.value.message
    assert "bubblewrap: no bubblewrap today" in caught.value.message
    assert "apt install bubblewrap" in (caught.value.tip or "")
    assert caught.value.exit_code == 69


def test_a_dead_daemon_is_one_sentence(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    expected = (
        r"docker: no daemon answers at unix:///nowhere/docker.sock \(no such file or directory\); is Docker running\?"
    )
    with pytest.raises(EngineError, match=expected):
        engines.find_engine("docker")


def test_a_missing_sdk_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.delitem(sys.modules, "sealtape.sandbox._docker")
    monkeypatch.delattr("sealtape.sandbox._docker")
    with pytest.raises(EngineError, match=r"'docker' is not installed \(pip install 'sealtape\[runner\]'\)"):
        engines.find_engine("docker")


def test_the_docker_sdk_is_not_imported_for_bubblewrap():
    code = "import sys, sealtape.sandbox.engine as e; e.find_engine('bubblewrap'); sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_entry_runs_without_site_and_finds_an_open_machine_open(tmp_path):
    """Outside a sandbox, as a plain script under -I -S: the probes must not call this machine sealed."""
    entry = Path(guest.__file__).parent / "entry.py"
    with socket.create_server(("127.0.0.1", 0)) as server:
        plan = {
            "command": ["-c", ""],
            "project": str(tmp_path),
            "limits": {},
            "canaries": {"tcp": server.getsockname(), "file": str(tmp_path / "no"), "abstract": None},
            "salt": "00",
            "secrets": [],
            "mounts": {},
            "required": [],
            "covered": [],
            "masks": [],
            "door": None,
            "uid": os.getuid(),
            "gid": os.getgid(),
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(entry)],
            input=json.dumps(plan) + "\nstop\n",
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 70
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    failed = {probe["name"] for probe in answer["probes"] if not probe["ok"]}
    assert {"mounts", "other processes"} <= failed
    assert {"seccomp", "io_uring", "socket families"}.isdisjoint(failed)
    assert answer["software"]["sealtape"] == "0.1.0"
