"""What an engine is, and how one is found. Both engines get one policy and owe one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from sealtape.config import Settings
from sealtape.errors import EngineError
from sealtape.sandbox.policy import Mount, Policy
from sealtape.sandbox.verdict import Check

Chunk = tuple[Literal["out", "err"], bytes]
Progress = Callable[[str], None]


class Process(Protocol):
    """A process on the other side of two pipes."""

    def send(self, data: bytes) -> None: ...

    def close_input(self) -> None: ...

    def output(self) -> Iterator[Chunk]:
        """What the process writes, as it comes; ends when the process has closed both streams."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; negative signals as 128 + n. Raises `TimeoutError`."""
        ...

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        ...

    def kill(self) -> None: ...


class Guest(Process, Protocol):
    """The sandbox of one run. It exists before anything runs in it: `begin` starts the entry.

    `workdir` is the project inside; `mounts` maps every expected mount point to whether it may be
    written, `required` are those that have to be there; `rlimits` are limits that the
    entry must set for want of an engine that does.
    """

    @property
    def workdir(self) -> str: ...

    @property
    def mounts(self) -> Mapping[str, bool]: ...

    @property
    def required(self) -> frozenset[str]: ...

    @property
    def rlimits(self) -> Mapping[str, int]: ...

    def begin(self) -> None: ...

    def inspect(self) -> list[Check]:
        """What the engine itself says of the sandbox; asked before `begin` and again after it."""
        ...


class Engine(Protocol):
    """What makes sandboxes."""

    name: str

    def usable(self) -> str | None:
        """None, or the reason why this engine cannot be used here."""
        ...

    def prepare(self, settings: Settings, progress: Progress, *, broker: bool = False) -> None:
        """Make what `start` needs (and with `broker` what `open_door` needs). Raises `EngineError`."""
        ...

    def start(self, policy: Policy) -> AbstractContextManager[Guest]:
        """A guest, which is gone when the context ends, however it ends."""
        ...

    def open_door(
        self, argv: Sequence[str], *, host_loopback: bool
    ) -> AbstractContextManager[tuple[Process, Mount, str]]:
        """A broker process, with a folder for its socket: as the guest mounts it, and as the broker sees it.

        `argv` follows the interpreter: `["-m", "package.module"]`. With `host_loopback` the broker
        can reach servers on this machine's loopback.
        """
        ...

    def reap(self) -> None:
        """Remove what runs that were killed outright have left."""
        ...


def find_engine(name: str) -> Engine:
    """The engine of that name, or with "auto" the first that is usable. Raises `EngineError`."""
    names = ("docker", "bubblewrap") if name == "auto" else (name,)
    tried: list[str] = []
    for candidate in names:
        try:
            engine = _make(candidate)
        except ImportError as error:
            tried.append(f"{candidate}: the package {error.name!r} is not installed (pip install 'sealtape[runner]')")
            continue
        reason = engine.usable()
        if reason is None:
            return engine
        tried.append(f"{candidate}: {reason}")
    listing = "\n".join(f"  {entry}" for entry in tried)
    raise EngineError(
        f"no engine can make a sandbox here; tried\n{listing}",
        tip="start Docker, or install bubblewrap (apt install bubblewrap, dnf install bubblewrap); "
        "sealtape never runs the tests unsealed instead. Plain `pytest` replays without a sandbox.",
    )


def _make(name: str) -> Engine:
    # Imported here: the Docker SDK is not needed, nor need it be installed, for bubblewrap.
    match name:
        case "docker":
            from sealtape.sandbox._docker import DockerEngine

            return DockerEngine()
        case "bubblewrap":
            from sealtape.sandbox._bubblewrap import BubblewrapEngine

            return BubblewrapEngine()
        case _:
            raise EngineError(f"there is no engine {name!r}", tip="engines: auto, docker, bubblewrap")
