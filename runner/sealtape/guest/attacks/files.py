"""Attacks by way of files: reading what is not the guest's, writing what outlives it, and finding the key."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from . import Bait, attack


def _family() -> Iterator[int]:
    """The ids of this process and its ancestors, as far as they can be seen."""
    pid = os.getpid()
    while pid:
        yield pid
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        pid = int(status.partition("PPid:")[2].split()[0])


# --- files and mounts ------------------------------------------------------------------------


def _reads(path: str | Path, bait: Bait) -> bool:
    return bait["token"] in Path(path).read_text(encoding="utf-8", errors="replace")


@attack("files and mounts", "a file in the caller's HOME")
def _home(bait: Bait) -> object:
    return _reads(f"{bait['home']}/secret", bait)


@attack("files and mounts", "a file in /tmp")
def _tmp(bait: Bait) -> object:
    return _reads(f"{bait['tmp']}/secret", bait)


@attack("files and mounts", "a file in /var/tmp")
def _var(bait: Bait) -> object:
    return _reads(f"{bait['var']}/secret", bait)


@attack("files and mounts", "a file in /dev/shm")
def _shm(bait: Bait) -> object:
    return _reads(f"{bait['shm']}/secret", bait)


@attack("files and mounts", "the project's neighbour")
def _neighbour(bait: Bait) -> object:
    return _reads(bait["neighbour"], bait)


@attack("files and mounts", "up from the project")
def _up(bait: Bait) -> object:
    return _reads("../neighbour/secret", bait)


@attack("files and mounts", "a link in the project to a file outside")
def _link(bait: Bait) -> object:
    return _reads("link-to-secret", bait)


@attack("files and mounts", "the project's .env")
def _env(bait: Bait) -> object:
    return _reads(".env", bait)


@attack("files and mounts", "a link to the project's .env")
def _env_link(bait: Bait) -> object:
    return _reads("settings/link-to-env", bait)


@attack("files and mounts", "the token in .git/config")
def _git(bait: Bait) -> object:
    return _reads(".git/config", bait)


@attack("files and mounts", "the token in a submodule's configuration")
def _submodule(bait: Bait) -> object:
    return _reads(".git/modules/sub/config", bait)


@attack("files and mounts", "by way of an ancestor's root")
def _ancestors_root(bait: Bait) -> object:
    for pid in _family():
        with contextlib.suppress(OSError):
            if _reads(f"/proc/{pid}/root{bait['tmp']}/secret", bait):
                return pid
    return None


@attack("files and mounts", "the host's accounts")
def _accounts(bait: Bait) -> object:
    return Path("/etc/passwd").read_text(encoding="utf-8") == bait["passwd"]


# --- writing back ----------------------------------------------------------------------------


def _writes(path: str | Path) -> bool:
    """Whether a file can be made there. It is removed again: the control is made on the host."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(descriptor)
    os.unlink(path)  # noqa: PTH108
    return True


@attack("writing back", "a new file in the project")
def _new(_bait: Bait) -> object:
    return _writes("written-inside")


@attack("writing back", "into a file of the project")
def _into(_bait: Bait) -> object:
    return os.open("victim", os.O_WRONLY | os.O_APPEND)


@attack("writing back", "removing a file")
def _remove(_bait: Bait) -> object:
    os.unlink("victim-of-unlink")  # noqa: PTH108
    return True


@attack("writing back", "renaming a file")
def _rename(_bait: Bait) -> object:
    os.rename("victim-of-rename", "renamed")  # noqa: PTH104
    return True


@attack("writing back", "making a file executable")
def _chmod(_bait: Bait) -> object:
    os.chmod("victim", 0o777)  # noqa: PTH101, S103
    return True


@attack("writing back", "changing its times")
def _utime(_bait: Bait) -> object:
    os.utime("victim", (1, 1))
    return True


@attack("writing back", "an extended attribute")
def _xattr(_bait: Bait) -> object:
    os.setxattr("victim", "user.sealtape", b"x")
    return True


@attack("writing back", "bytecode that the next run imports")
def _bytecode(_bait: Bait) -> object:
    return _writes("__pycache__/module.cpython-399.pyc")


@attack("writing back", "a git hook")
def _hook(_bait: Bait) -> object:
    return _writes(".git/hooks/post-checkout")


@attack("writing back", "a setting of git")
def _git_setting(_bait: Bait) -> object:
    return os.open(".git/config", os.O_WRONLY | os.O_APPEND)


@attack("writing back", "a cassette")
def _cassette(_bait: Bait) -> object:
    return _writes("cassettes/0123456789abcdef.json")


@attack("writing back", "sealtape's own code")
def _own_code(_bait: Bait) -> object:
    return _writes(Path(__file__).with_name("written-inside"))


@attack("writing back", "the environment's packages")
def _packages(_bait: Bait) -> object:
    return _writes(Path(sys.prefix, "written-inside"))


@attack("writing back", "a file in the caller's HOME")
def _write_home(bait: Bait) -> object:
    return _writes(f"{bait['home']}/written-inside")


# --- environment -----------------------------------------------------------------------------


@attack("environment", "the key in its variable")
def _variable(bait: Bait) -> object:
    return os.environ.get("OPENAI_API_KEY") == bait["token"]


@attack("environment", "the key in any variable")
def _any_variable(bait: Bait) -> object:
    return any(bait["token"] in value for value in os.environ.values())


@attack("environment", "the key in /proc/self/environ")
def _proc_environ(bait: Bait) -> object:
    return _reads("/proc/self/environ", bait)


@attack("environment", "the key in the parent's environment")
def _parent_environ(bait: Bait) -> object:
    return _reads(f"/proc/{os.getppid()}/environ", bait)


@attack("environment", "the key in an ancestor's command line or environment")
def _ancestors(bait: Bait) -> object:
    for pid in _family():
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                if _reads(f"/proc/{pid}/{name}", bait):
                    return pid
    return None


@attack("environment", "the proxy's password")
def _proxy(bait: Bait) -> object:
    return bait["token"] in os.environ.get("HTTPS_PROXY", "")


@attack("environment", "the agent's socket")
def _agent(bait: Bait) -> object:
    return os.environ.get("SSH_AUTH_SOCK") == f"{bait['tmp']}/s"
