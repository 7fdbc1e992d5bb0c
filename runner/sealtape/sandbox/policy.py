"""The policy: everything a guest gets, decided before an engine is asked.

An engine only translates it. So there is one place to read what a sealed run may see, and a test
can break one translation on purpose and watch the verdict notice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from sealtape import guest
from sealtape.config import Settings
from sealtape.sandbox.git import find_repository
from sealtape.sandbox.rundir import run_folder
from sealtape.sandbox.survey import doors_below, survey

HOME = "/home/sealtape"
OUT = "/sealtape/out"
RESULTS = f"{OUT}/files"
GUEST = "/sealtape/guest"
ENTRY = f"{GUEST}/entry.py"
HOSTNAME = "sealtape"
PLUGIN = "sealtape"

# Of the host's environment, this and nothing else; names ending in * are prefixes.
_FROM_HOST = ("LANG", "LC_*", "TZ", "TERM", "CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTEST_ADDOPTS")
# A guest that is root would differ from every user's machine, and read what they cannot.
_ORDINARY = 1000
_PYTEST_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
# Below this a match in an environment would be chance.
_SHORTEST_SECRET = 8


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of the host, or a volume, seen by the guest at `target`."""

    source: str
    target: str
    kind: Literal["bind", "volume"] = "bind"
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of the machine a guest may take. Sizes in bytes."""

    processes: int = 2048
    memory: int = 8 << 30
    shared_memory: int = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What one guest gets.

    `files` are texts laid over the guest's file system, `empty_files` and `empty_folders` hide
    what the project has there, `host_environments` are hidden where the engine brings its own
    Python. Their paths are absolute, or relative to the project. `leaks` are project files that
    hold a secret in plain sight. `stage` is where an engine wrote `files`.
    """

    project: Path
    out: Path
    command: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    empty_files: tuple[str, ...] = ()
    empty_folders: tuple[str, ...] = ()
    host_environments: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ("/tmp", "/var/tmp", "/run", HOME)  # noqa: S108 - the guest's
    limits: Limits = Limits()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    leaks: tuple[tuple[str, str], ...] = ()
    uid: int = _ORDINARY
    gid: int = _ORDINARY
    door: str | None = None
    stage: Path | None = None

    def binds(self, workdir: str) -> list[Mount]:
        """Every mount, parents before what lies in them, with the project at `workdir`."""
        if self.stage is None:
            raise ValueError("the policy is not staged")
        binds = [
            Mount(source=str(self.project), target=workdir),
            *self.mounts,
            Mount(source=str(Path(guest.__file__).parent), target=GUEST),
            Mount(source=str(self.out), target=OUT, writable=True),
        ]
        empty = str(self.stage / "empty")
        binds += [Mount(source=empty, target=placed(path, workdir)) for path in self.empty_files]
        for number, path in enumerate(self.files):
            binds.append(Mount(source=str(self.stage / f"file-{number}"), target=placed(path, workdir)))
        return binds


def guest_ids() -> tuple[int, int]:
    """The guest's uid and gid: the caller's, or ordinary ones where that is root."""
    return (os.getuid(), os.getgid()) if os.getuid() else (_ORDINARY, _ORDINARY)


def placed(path: str, workdir: str) -> str:
    """A policy's path as the guest sees it."""
    return str(Path(workdir, path))


def make_policy(
    settings: Settings,
    *,
    pytest_args: Sequence[str],
    env: Mapping[str, str],
    out: Path,
    secrets: Mapping[str, str],
    extra_mounts: Sequence[Mount] = (),
) -> Policy:
    """The policy of one run.

    `env` is added to the little that comes from the host; `out` is the folder the guest may write
    its results to, at `/sealtape/out`; `secrets` maps names to values that must not be readable
    inside. A mount of kind "volume", or one below `/sealtape/door`, is the broker's door.
    """
    secrets = {name: value for name, value in secrets.items() if len(value) >= _SHORTEST_SECRET}
    found = survey(settings.root, settings.mask, secrets)
    # The project is read-only; and without the cache plugin this setting would be an unknown one.
    cache = () if _has_no_cache(settings.root, pytest_args) else ("-o", "cache_dir=/tmp/pytest-cache")
    repository = find_repository(settings.root)
    own = settings.root / ".git"
    doors = [os.path.relpath(door, settings.root) for door in doors_below(own)] if own.is_dir() else []
    doors += [door for folder in repository.outside for door in doors_below(folder)]
    uid, gid = guest_ids()
    return Policy(
        project=settings.root,
        out=out,
        command=("-m", "pytest", "-p", PLUGIN, *cache, *pytest_args),
        env={**_inherited(settings.env, os.environ), **_own(), **env},
        mounts=(*(Mount(source=str(path), target=str(path)) for path in repository.outside), *extra_mounts),
        files={**_etc(uid, gid), **repository.files},
        empty_files=(*found.masked_files, *found.doors, *doors),
        empty_folders=found.masked_folders,
        host_environments=found.environments,
        secrets=secrets,
        leaks=found.with_secrets,
        uid=uid,
        gid=gid,
        door=next((mount.target for mount in extra_mounts if mount.target.startswith("/sealtape/door")), None),
    )


def _has_no_cache(root: Path, pytest_args: Sequence[str]) -> bool:
    """Whether pytest's cache is switched off, on the command line or in one of the files that can do it."""
    files = [root / name for name in _PYTEST_FILES if (root / name).is_file()]
    texts = [*pytest_args, os.environ.get("PYTEST_ADDOPTS", "")]
    texts += [path.read_text(encoding="utf-8", errors="replace") for path in files]
    return any("no:cacheprovider" in text for text in texts)


@contextmanager
def staged(policy: Policy) -> Iterator[Policy]:
    """The policy with its texts written to a folder of the host, for as long as the guest lives."""
    with run_folder() as folder:
        for name, text in {"empty": "", **{f"file-{n}": text for n, text in enumerate(policy.files.values())}}.items():
            path = folder / name
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
            path.chmod(0o444)  # the guest's uid can be another one
        yield replace(policy, stage=folder)


def _inherited(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    wanted = (*_FROM_HOST, *names)
    prefixes = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {name: value for name, value in environ.items() if name in wanted or name.startswith(prefixes)}


def _own() -> dict[str, str]:
    return {
        "HOME": HOME,
        # getpass, ~ and some imports ask these before they ask for a passwd entry.
        "USER": HOSTNAME,
        "LOGNAME": HOSTNAME,
        "TMPDIR": "/tmp",  # noqa: S108 - the guest's
        "XDG_CACHE_HOME": f"{HOME}/.cache",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        # Where a test may write what is to outlive the run; coverage would write beside the code.
        "SEALTAPE_OUT": RESULTS,
        "COVERAGE_FILE": f"{RESULTS}/.coverage",
        # The project belongs to another uid, and its git folder cannot be written.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }


def _etc(uid: int, gid: int) -> dict[str, str]:
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"sealtape:x:{uid}:{gid}:sealtape:{HOME}:/bin/sh\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "/etc/group": f"root:x:0:\nsealtape:x:{gid}:\nnogroup:x:65534:\n",
        "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n",
        # A name that is not in the hosts file fails at once, and no resolver's socket is asked.
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
        "/etc/resolv.conf": "",
    }
