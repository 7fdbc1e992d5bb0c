"""Attacks by way of sockets: the network, names, unix sockets, and descriptors that were left open."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http.client
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import Bait, MissingToolError, attack, heard, patient

# --- network ---------------------------------------------------------------------------------


def _tcp(bait: Bait, host: str, port: int, *, family: int = socket.AF_INET, protocol: int = 0) -> bool:
    with patient(socket.socket(family, socket.SOCK_STREAM, protocol)) as sock:
        sock.connect((host, port))
        return heard(sock, bait)


def _tool(*command: str, wants: int = 0) -> str:
    """What a program printed; `wants` is the exit code that means it was refused."""
    if not shutil.which(command[0]):
        raise MissingToolError(command[0])
    done = subprocess.run(command, capture_output=True, text=True, timeout=8, check=False)
    if done.returncode not in (0, wants):
        raise MissingToolError(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


@attack("network", "create_connection")
def _create_connection(bait: Bait) -> object:
    with socket.create_connection(("127.0.0.1", bait["tcp"]), timeout=2) as sock:
        return heard(sock, bait)


@attack("network", "IPv6 loopback")
def _ipv6(bait: Bait) -> object:
    return _tcp(bait, "::1", bait["tcp6"], family=socket.AF_INET6)


@attack("network", "IPv4 in an IPv6 address")
def _mapped(bait: Bait) -> object:
    return _tcp(bait, "::ffff:127.0.0.1", bait["tcp"], family=socket.AF_INET6)


@attack("network", "the unspecified address")
def _unspecified(bait: Bait) -> object:
    return _tcp(bait, "0.0.0.0", bait["tcp"])  # noqa: S104 - connected to


@attack("network", "the host's own address")
def _lan(bait: Bait) -> object:
    return _tcp(bait, *bait["lan"])


@attack("network", "multipath TCP")
def _multipath(bait: Bait) -> object:
    return _tcp(bait, "127.0.0.1", bait["tcp"], protocol=262)


@attack("network", "TCP fast open, without connect")
def _fast_open(bait: Bait) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        # Not settimeout(): that makes the socket non-blocking, which ends a fast open half-way.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 2, 0))
        sock.sendto(b"x", 0x2000_0000, ("127.0.0.1", bait["tcp"]))
        return heard(sock, bait)


@attack("network", "UDP sendto")
def _udp(bait: Bait) -> object:
    with patient(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.sendto(b"x", ("127.0.0.1", bait["udp"]))
        return heard(sock, bait)


@attack("network", "UDP sendmsg")
def _udp_message(bait: Bait) -> object:
    with patient(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.sendmsg([b"x"], [], 0, ("127.0.0.1", bait["udp"]))
        return heard(sock, bait)


@attack("network", "UDP over IPv6")
def _udp6(bait: Bait) -> object:
    with patient(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as sock:
        sock.sendto(b"x", ("::1", bait["udp6"]))
        return heard(sock, bait)


@attack("network", "http.client")
def _http_client(bait: Bait) -> object:
    connection = http.client.HTTPConnection("127.0.0.1", bait["tcp"], timeout=2)
    connection.request("GET", "/")
    return bait["token"] in connection.getresponse().read().decode()


@attack("network", "urllib")
def _urllib(bait: Bait) -> object:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{bait['tcp']}/", timeout=2) as response:
        return bait["token"] in response.read().decode()


@attack("network", "asyncio")
def _asyncio(bait: Bait) -> object:
    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", bait["tcp"])
        text = await asyncio.wait_for(reader.read(4096), 2)
        writer.close()
        return text

    return bait["token"].encode() in asyncio.run(ask())


@attack("network", "curl")
def _curl(bait: Bait) -> object:
    return bait["token"] in _tool(
        "curl", "-sS", "--noproxy", "*", "-m", "2", f"http://127.0.0.1:{bait['tcp']}/", wants=7
    )


@attack("network", "bash's /dev/tcp")
def _bash(bait: Bait) -> object:
    return bait["token"] in _tool("bash", "-c", f"cat < /dev/tcp/127.0.0.1/{bait['tcp']}", wants=1)


@attack("network", "interfaces by ioctl")
def _interfaces(bait: Bait) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, 0x8933, struct.pack("16s24x", bait["interface"].encode()))


_DONE = 3


@attack("network", "interfaces by netlink")
def _netlink(bait: Bait) -> object:
    with patient(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)) as sock:
        sock.sendto(struct.pack("=IHHIIB3x", 20, 18, 0x301, 1, 0, 0), (0, 0))
        wanted = f"{bait['interface']}\0".encode()
        while answer := sock.recv(1 << 16):
            _, kind = struct.unpack_from("=IH", answer)
            if wanted in answer or kind == _DONE:
                return wanted in answer
    return None


@attack("network", "interfaces in /sys")
def _sysfs(bait: Bait) -> object:
    return bait["interface"] in os.listdir("/sys/class/net")  # noqa: PTH208


# --- names -----------------------------------------------------------------------------------


@attack("names", "getaddrinfo of the host's name")
def _getaddrinfo(bait: Bait) -> object:
    return socket.getaddrinfo(bait["hostname"], 80)


@attack("names", "gethostbyname")
def _gethostbyname(bait: Bait) -> object:
    return socket.gethostbyname(bait["hostname"])


@attack("names", "getent")
def _getent(bait: Bait) -> object:
    return _tool("getent", "hosts", bait["hostname"], wants=2)


@attack("names", "the host's name itself")
def _hostname(bait: Bait) -> object:
    return socket.gethostname() == bait["hostname"] and bait["hostname"]


@attack("names", "a query to the host's resolver")
def _query(bait: Bait) -> object:
    question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x04test\x00\x00\x01\x00\x01"
    with patient(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.sendto(question, ("127.0.0.1", bait["udp"]))
        return heard(sock, bait)


@attack("names", "the resolver's address in /etc/resolv.conf")
def _resolver(bait: Bait) -> object:
    return Path("/etc/resolv.conf").read_text(encoding="utf-8") == bait["resolver"]


# --- unix sockets ----------------------------------------------------------------------------


def _unix(bait: Bait, address: str) -> bool:
    with patient(socket.socket(socket.AF_UNIX)) as sock:
        sock.connect(address)
        return heard(sock, bait)


@attack("unix sockets", "an abstract one")
def _abstract(bait: Bait) -> object:
    return _unix(bait, f"\0{bait['abstract']}")


@attack("unix sockets", "one in /tmp")
def _unix_tmp(bait: Bait) -> object:
    return _unix(bait, f"{bait['tmp']}/s")


@attack("unix sockets", "one in /var/tmp")
def _unix_var(bait: Bait) -> object:
    return _unix(bait, f"{bait['var']}/s")


@attack("unix sockets", "one in the caller's HOME")
def _unix_home(bait: Bait) -> object:
    return _unix(bait, f"{bait['home']}/s")


@attack("unix sockets", "one in /dev/shm")
def _unix_shm(bait: Bait) -> object:
    return _unix(bait, f"{bait['shm']}/s")


@attack("unix sockets", "one in the project")
def _unix_project(bait: Bait) -> object:
    return _unix(bait, "in-project.sock")


@attack("unix sockets", "a link in the project to one outside")
def _unix_link(bait: Bait) -> object:
    return _unix(bait, "link-to-socket")


@attack("unix sockets", "by way of another process's root")
def _unix_root(bait: Bait) -> object:
    return _unix(bait, f"/proc/{bait['pid']}/root{bait['tmp']}/s")


@attack("unix sockets", "a FIFO in the project")
def _fifo(_bait: Bait) -> object:
    # Opening it for writing without blocking works only while the host reads.
    descriptor = os.open("in-project.fifo", os.O_WRONLY | os.O_NONBLOCK)
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"x")


@attack("unix sockets", "Docker's")
def _docker(bait: Bait) -> object:
    with patient(socket.socket(socket.AF_UNIX)) as sock:
        sock.connect(bait["docker"])
        sock.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return sock.recv(64)


# --- inherited descriptors -------------------------------------------------------------------


def _own_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]  # noqa: PTH208, PLR2004


def _of_kind(test: Any) -> list[int]:
    found = []
    for descriptor in _own_descriptors():
        with contextlib.suppress(OSError):  # the listing's own
            if test(os.fstat(descriptor).st_mode):
                found.append(descriptor)
    return found


def _any(kind: Any, holds: Callable[[int], bool]) -> bool:
    """Whether it holds for one open descriptor of that kind; there are innocent ones too."""
    for descriptor in _of_kind(kind):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if holds(descriptor):
                return True
    return False


@attack("inherited descriptors", "an open file")
def _inherited_file(bait: Bait) -> object:
    return _any(stat.S_ISREG, lambda fd: bait["token"].encode() in os.pread(fd, 4096, 0))


@attack("inherited descriptors", "an open folder")
def _inherited_folder(bait: Bait) -> object:
    def holds(folder: int) -> bool:
        with os.fdopen(os.open("secret", os.O_RDONLY, dir_fd=folder)) as file:
            return bait["token"] in file.read()

    return _any(stat.S_ISDIR, holds)


@attack("inherited descriptors", "a connected socket")
def _inherited_socket(bait: Bait) -> object:
    return _any(stat.S_ISSOCK, lambda fd: heard(patient(socket.socket(fileno=os.dup(fd))), bait))


@attack("inherited descriptors", "reopened through /proc")
def _reopened(bait: Bait) -> object:
    return _any(stat.S_ISREG, lambda fd: bait["token"] in Path(f"/proc/self/fd/{fd}").read_text(encoding="utf-8"))


@attack("inherited descriptors", "handed on to a child")
def _handed_on(bait: Bait) -> object:
    fds = _of_kind(stat.S_ISREG)
    code = f"import os\nfor fd in {fds}:\n  try: print(os.pread(fd, 4096, 0).decode('latin-1'))\n  except OSError: pass"
    command = [sys.executable, "-I", "-S", "-c", code]
    return bait["token"] in subprocess.run(command, pass_fds=fds, capture_output=True, text=True, check=True).stdout
