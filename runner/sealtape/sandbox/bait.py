"""What the attack catalogue tries to reach: on the host, each within reach of an ordinary process.

Everything answers with, or holds, one random token. Whoever has the token has got out.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

_ANSWER = "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n{}\n"
# A process with the token in its arguments, environment, memory, working folder and open files.
_PROCESS = """
import ctypes, os, sys
token = ctypes.create_string_buffer(os.environb[b"TOKEN"])
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # where Yama asks: anyone may trace it
print(ctypes.addressof(token), os.open("secret", os.O_RDONLY), flush=True)
sys.stdin.read()
"""


@contextmanager
def laid_out(project: Path) -> Iterator[dict[str, Any]]:
    """Bait all over the host and in `project`, for as long as the context lasts."""
    token = f"sk-sealtape-{secrets.token_hex(16)}"
    with ExitStack() as stack:
        bait: dict[str, Any] = {"token": token, "hostname": socket.gethostname(), "docker": "/var/run/docker.sock"}
        bait |= {name: stack.enter_context(_folder(parent, token)) for name, parent in _PLACES.items()}
        bait |= _servers(stack, token)
        bait["abstract"] = f"sealtape-{secrets.token_hex(8)}"
        for address in (f"\0{bait['abstract']}", *(f"{bait[name]}/s" for name in _PLACES)):
            _serve(stack, socketserver.ThreadingUnixStreamServer(address, _handler(token)))
        _link(project, bait)
        fill(project, bait)
        with contextlib.chdir(project):  # the path of a unix socket is short
            _serve(stack, socketserver.ThreadingUnixStreamServer("in-project.sock", _handler(token)))
        stack.callback(os.close, os.open(project / "in-project.fifo", os.O_RDONLY | os.O_NONBLOCK))
        bait |= stack.enter_context(_process(bait))
        bait["sysv"] = stack.enter_context(_shared_memory(token))
        bait["neighbour"] = str(project.parent / "neighbour" / "secret")
        bait["resolver"] = _text("/etc/resolv.conf")
        bait["passwd"] = _text("/etc/passwd")
        stack.enter_context(_inherited(bait))
        stack.enter_context(_environment(bait))
        yield bait


_PLACES = {"tmp": "/tmp", "var": "/var/tmp", "shm": "/dev/shm", "home": str(Path.home())}  # noqa: S108


@contextmanager
def _folder(parent: str, token: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=".sealtape-bait-", dir=parent) as folder:
        Path(folder).chmod(0o755)
        Path(folder, "secret").write_text(token, encoding="utf-8")
        yield folder


def fill(project: Path, bait: Mapping[str, Any]) -> None:
    """The project's files. An attack that works removes some of them, so this is done before each round."""
    texts = {
        ".env": f"OPENAI_API_KEY={bait['token']}\n",
        ".git/config": f"[http]\n\textraheader = Authorization: {bait['token']}\n",
        ".git/modules/sub/config": f'[remote "origin"]\n\turl = https://x:{bait["token"]}@git.invalid/a\n',
        "victim": "x",
        "victim-of-unlink": "x",
        "victim-of-rename": "x",
    }
    for name in ("settings", "cassettes", "__pycache__", ".git/hooks", ".git/modules/sub", "../neighbour"):
        (project / name).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (project / name).write_text(text, encoding="utf-8")
    (project.parent / "neighbour" / "secret").write_text(bait["token"], encoding="utf-8")


def _link(project: Path, bait: dict[str, Any]) -> None:
    (project / "settings").mkdir()
    (project / "settings" / "link-to-env").symlink_to("../.env")
    (project / "link-to-secret").symlink_to(f"{bait['tmp']}/secret")
    (project / "link-to-socket").symlink_to(f"{bait['tmp']}/s")
    os.mkfifo(project / "in-project.fifo")


# --- servers ---------------------------------------------------------------------------------


def _handler(token: str) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            text = _ANSWER.format(token).encode()
            if isinstance(self.request, tuple):  # a datagram, and the socket to answer through
                self.request[1].sendto(text, self.client_address)
                return
            with contextlib.suppress(OSError):
                self.request.settimeout(5)
                self.request.sendall(text)
                self.request.shutdown(socket.SHUT_WR)
                while self.request.recv(4096):
                    pass  # or closing would reset the connection, and with it the answer

    return Handler


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True


class _Tcp6(_Tcp):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()


class _Udp6(socketserver.ThreadingUDPServer):
    address_family = socket.AF_INET6


def _servers(stack: ExitStack, token: str) -> dict[str, Any]:
    handler = _handler(token)
    interface, own = _own_address()
    ports = {
        "tcp": _serve(stack, _Tcp(("127.0.0.1", 0), handler)),
        "tcp6": _serve(stack, _Tcp6(("::1", 0), handler)),
        "udp": _serve(stack, socketserver.ThreadingUDPServer(("127.0.0.1", 0), handler)),
        "udp6": _serve(stack, _Udp6(("::1", 0), handler)),
    }
    lan = _serve(stack, _Tcp((own, 0), handler)).server_address
    return {name: server.server_address[1] for name, server in ports.items()} | {
        "lan": list(lan[:2]),
        "interface": interface,
    }


def _serve(stack: ExitStack, server: Any) -> Any:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return server


def _own_address() -> tuple[str, str]:
    """An interface of this machine, and its address."""
    get_address = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(sock, get_address, struct.pack("16s24x", name.encode()))
                if name != "lo":
                    return name, socket.inet_ntoa(answer[20:24])
    return "lo", "127.0.0.1"


# --- a process, its memory, its descriptors, its environment ---------------------------------


@contextmanager
def _process(bait: dict[str, Any]) -> Iterator[dict[str, int]]:
    command = [sys.executable, "-I", "-S", "-c", _PROCESS, f"--password={bait['token']}"]
    pipe = subprocess.PIPE
    environ = {"TOKEN": bait["token"]}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=bait["tmp"], env=environ, text=True) as process:
        assert process.stdout
        address, descriptor = process.stdout.readline().split()
        yield {"pid": process.pid, "address": int(address), "fd": int(descriptor)}
        process.kill()


@contextmanager
def _shared_memory(token: str) -> Iterator[int]:
    create, remove = 0o1000, 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = secrets.randbelow(1 << 30) + 1
    identifier = libc.shmget(key, 4096, create | 0o666)
    address = libc.shmat(identifier, None, 0)
    try:
        ctypes.memmove(address, token.encode(), len(token))
        yield key
    finally:
        libc.shmdt(ctypes.c_void_p(address))
        libc.shmctl(identifier, remove, None)


@contextmanager
def _inherited(bait: dict[str, Any]) -> Iterator[None]:
    """Descriptors that every child gets which nobody protects from them."""
    with socket.create_connection(("127.0.0.1", bait["tcp"])) as sock:
        descriptors = [os.open(f"{bait['tmp']}/secret", os.O_RDONLY), os.open(bait["tmp"], os.O_RDONLY), sock.fileno()]
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        bait["inherited"] = descriptors
        try:
            yield
        finally:
            for descriptor in descriptors[:2]:
                os.close(descriptor)


@contextmanager
def _environment(bait: dict[str, Any]) -> Iterator[None]:
    """The caller's environment, as it is on a developer's machine."""
    set_ = {
        "OPENAI_API_KEY": bait["token"],
        "HTTPS_PROXY": f"http://user:{bait['token']}@127.0.0.1:{bait['tcp']}",
        "SSH_AUTH_SOCK": f"{bait['tmp']}/s",
    }
    before = {name: os.environ.get(name) for name in set_}
    os.environ.update(set_)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


@contextmanager
def bait_project() -> Iterator[Path]:
    """A project to be attacked, at a place that a guest of another uid can read, and with a name that is no word."""
    with tempfile.TemporaryDirectory(prefix="sealtape-attacked-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        project = Path(folder, "a project é")
        project.mkdir()
        (project / "pyproject.toml").write_text("[tool.sealtape]\n", encoding="utf-8")
        try:
            yield project
        finally:
            shutil.rmtree(project)
