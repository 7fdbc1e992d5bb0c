"""Attacks on a guard that is made of Python: references kept from before it, and moments when it is away."""

from __future__ import annotations

import _socket
import ctypes
import gc
import importlib.util
import os
import socket
import struct
import subprocess
import sys
import threading
from socket import create_connection as create_connection_before
from socket import socket as socket_before

from . import Bait, attack, heard, patient

_CODE = "import socket; s = socket.create_connection(('127.0.0.1', {tcp}), 2); print(s.recv(4096).decode())"


class _Subclass(socket_before):
    """Made while the guard was not there yet."""


def _asks(bait: Bait, sock: socket.socket) -> bool:
    with patient(sock):
        sock.connect(("127.0.0.1", bait["tcp"]))
        return heard(sock, bait)


@attack("Python", "_socket.socket")
def _underlying(bait: Bait) -> object:
    sock = _socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(2)
    sock.connect(("127.0.0.1", bait["tcp"]))
    return bait["token"].encode() in sock.recv(4096)


@attack("Python", "from socket import socket")
def _early(bait: Bait) -> object:
    return _asks(bait, socket_before(socket.AF_INET, socket.SOCK_STREAM))


@attack("Python", "from socket import create_connection")
def _early_function(bait: Bait) -> object:
    with create_connection_before(("127.0.0.1", bait["tcp"]), 2) as sock:
        return heard(sock, bait)


@attack("Python", "a subclass")
def _subclass(bait: Bait) -> object:
    return _asks(bait, _Subclass(socket.AF_INET, socket.SOCK_STREAM))


@attack("Python", "the module loaded once more")
def _reloaded(bait: Bait) -> object:
    spec = importlib.util.find_spec("socket")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _asks(bait, module.socket(socket.AF_INET, socket.SOCK_STREAM))


@attack("Python", "the class found among all objects")
def _collected(bait: Bait) -> object:
    classes = [thing for thing in gc.get_referrers(_socket.socket) if isinstance(thing, type)]
    original = next(kind for kind in classes if kind.__module__ == "socket" and kind.__name__ == "socket")
    return _asks(bait, original(socket.AF_INET, socket.SOCK_STREAM))


@attack("Python", "connect_ex")
def _connect_ex(bait: Bait) -> object:
    with patient(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as sock:
        return not sock.connect_ex(("127.0.0.1", bait["tcp"])) and heard(sock, bait)


@attack("Python", "an unbound method")
def _unbound(bait: Bait) -> object:
    with patient(socket_before(socket.AF_INET, socket.SOCK_STREAM)) as sock:
        _socket.socket.connect(sock, ("127.0.0.1", bait["tcp"]))
        return heard(sock, bait)


@attack("Python", "connect(2) by ctypes")
def _ctypes(bait: Bait) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.socket(2, 1, 0)
    address = struct.pack("=H", 2) + struct.pack(">H", bait["tcp"]) + bytes([127, 0, 0, 1]) + bytes(8)
    if libc.connect(descriptor, address, len(address)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return bait["token"].encode() in os.read(descriptor, 4096)


@attack("Python", "a subprocess")
def _subprocess(bait: Bait) -> object:
    command = [sys.executable, "-I", "-S", "-c", _CODE.format(**bait)]
    return bait["token"] in subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout


@attack("Python", "gethostbyname_ex")
def _gethostbyname_ex(bait: Bait) -> object:
    return socket.gethostbyname_ex(bait["hostname"])


@attack("Python", "a thread")
def _thread(bait: Bait) -> object:
    results: list[object] = []

    def ask() -> None:
        try:
            results.append(_asks(bait, socket_before(socket.AF_INET, socket.SOCK_STREAM)))
        except OSError:
            results.append(False)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(5)
    return results[0]


def _plainly(bait: Bait) -> object:
    with socket.create_connection(("127.0.0.1", bait["tcp"]), timeout=2) as sock:
        return heard(sock, bait)


for _moment, _name in {
    "import": "while a module is imported",
    "session": "in a session's fixture",
    "teardown": "in a fixture's teardown",
    "later": "in a thread that outlives its test",
    "exit": "when the interpreter ends",
}.items():
    attack("Python", _name, _moment)(_plainly)
