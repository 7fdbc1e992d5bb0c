"""`python -m sealtape.broker`: one JSON line in, events out, until standard input closes.

The host's end of standard input is the lifeline: when the host dies, however it dies, the
operating system closes it, and no process with keys in it is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from sealtape.broker.server import HEADER_BYTES, Broker
from sealtape.broker.upstream import Upstream
from sealtape.broker.wire import BrokerConfig
from sealtape.errors import EXIT_USAGE


def main() -> int:
    """Runs until the host goes, and returns the exit code."""
    # Ctrl-C reaches the whole foreground group. The host ends its tests first, and then this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        config = BrokerConfig.from_line(sys.stdin.buffer.readline())
    except (ValueError, KeyError, TypeError) as error:
        # Only the kind of error: its text may quote the line, and the line has keys in it.
        _say(json.dumps({"event": "error", "message": f"the configuration line is not valid ({type(error).__name__})"}))
        return EXIT_USAGE
    try:
        asyncio.run(_serve(config))
    except OSError as error:
        _say(json.dumps({"event": "error", "message": f"{config.socket}: {error}"}))
        return 1
    return 0


async def _serve(config: BrokerConfig) -> None:
    upstream = Upstream(ca=config.ca, proxy=config.proxy)
    settings = uvicorn.Config(
        Broker(config, upstream, report=_say),
        http="h11",
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    with _listener(Path(config.socket)) as listener:
        server = _Server(settings)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, server.stop)
        await loop.connect_read_pipe(lambda: _Lifeline(server), sys.stdin)
        await server.serve(sockets=[listener])


@contextlib.contextmanager
def _listener(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        try:
            # The guest may run as another uid, in another user namespace. Who can get here at all
            # is decided by the folder, which only the two of them can see, and then by the token.
            path.chmod(0o666)
            yield listener
        finally:
            path.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready and leaves signals to `_serve`."""

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _say(json.dumps({"event": "ready"}))


class _Lifeline(asyncio.Protocol):
    """Ends the server when the host's end of standard input is gone."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.stop()


def _say(line: str) -> None:
    # A host that is gone reads nothing; the lifeline ends this process.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
