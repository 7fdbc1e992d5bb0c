"""Why a Docker daemon cannot be used here, and what to do about it: one sentence each."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sealtape.config import LOOPBACK

_INSTEAD = "or use --engine bubblewrap"


def unreachable(address: str) -> str | None:
    """The reason why a daemon cannot be talked to; asked plainly, where the SDK answers with a traceback."""
    parts = urlsplit(address)
    if parts.scheme != "unix":
        if parts.hostname in LOOPBACK:
            return None
        return (
            f"the daemon at {address} is on another machine, where the project cannot be mounted; "
            f"run sealtape there, unset DOCKER_HOST for this machine's daemon, {_INSTEAD}"
        )
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(address.removeprefix("unix://"))
        except PermissionError:
            return (
                f"no permission for the daemon at {address}; "
                f"join its group (sudo usermod -aG docker $USER, then log in again), {_INSTEAD}"
            )
        except OSError as error:
            return f"no daemon answers at {address} ({str(error.strerror).lower()}); {_where_else()}"
    return None


def unsuitable(address: str, facts: Mapping[str, Any]) -> str | None:
    """The reason why a daemon that answers is of no use; `facts` is what `docker info` says."""
    if "name=rootless" in (facts.get("SecurityOptions") or ()):
        return (
            f"the daemon at {address} is rootless: what its containers write belongs to a user that is not you; "
            f"use a daemon that is not, {_INSTEAD}"
        )
    if facts.get("OSType", "linux") != "linux":
        return f"the daemon at {address} runs {facts['OSType']} containers; switch it to Linux containers"
    return None


def tip_for(reason: str) -> str:
    """What helps against an error of the daemon."""
    if "bind source path does not exist" in reason or "not shared from the host" in reason:
        return (
            "the daemon sees other folders than this process: inside a container that uses its host's daemon, "
            f"run sealtape on the host {_INSTEAD}; on a Mac, share the folder in Docker's settings"
        )
    return "see `docker info` and the daemon's log"


def _where_else() -> str:
    rootless = Path(os.environ.get("XDG_RUNTIME_DIR", ""), "docker.sock")
    if rootless.is_absolute() and rootless.exists():
        return f"a rootless one at unix://{rootless} is of no use here: start Docker itself, {_INSTEAD}"
    return "is Docker running?"
