"""A run's own folder on the host, and how a later run tells that its owner is dead.

The owner holds a lock on a file in the folder. The kernel gives the lock back however the owner
ends, so what can be locked is left over: from a `kill -9`, or a power cut.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sealtape.errors import EngineError

_LOCK = "lock"


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder for one run, removed at the end."""
    folder = _parent() / secrets.token_hex(6)
    folder.mkdir(mode=0o700)
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_left_over(folder: Path) -> bool:
    """Whether the run that owned the folder is dead. In doubt it is not."""
    try:
        lock = (folder / _LOCK).open("r")
    except FileNotFoundError:
        return True
    except OSError:
        return False  # another user's
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def remove_left_over_folders() -> None:
    for folder in _parent().iterdir():
        # The lock comes a moment after the folder: a folder without one may be a run that begins.
        if (folder / _LOCK).exists() and is_left_over(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    parent = Path(tempfile.gettempdir(), f"sealtape-{os.getuid()}")
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    if parent.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise EngineError(
            f"{parent} belongs to another user or is open to others; sealtape keeps its run folders there",
            tip=f"remove {parent}, or set TMPDIR to a folder of your own",
        )
    return parent
