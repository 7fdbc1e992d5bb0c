"""Attacks by way of the kernel: its less known interfaces, and other processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import stat
from pathlib import Path

from . import Bait, attack

_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {
    "x86_64": {
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "add_key": 248,
        "setns": 308,
        "open_by_handle_at": 304,
        "name_to_handle_at": 303,
    },
    "aarch64": {
        "bpf": 280,
        "perf_event_open": 241,
        "userfaultfd": 282,
        "add_key": 217,
        "setns": 268,
        "open_by_handle_at": 265,
        "name_to_handle_at": 264,
    },
}
_NUMBER = _NUMBERS.get(platform.machine(), {}) | {
    "io_uring_setup": 425,
    "open_tree": 428,
    "fsopen": 430,
    "clone3": 435,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
}
_NEW_USER, _NEW_NET, _NEW_NS = 0x1000_0000, 0x4000_0000, 0x0002_0000


def _call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """A system call by its number. Raises `OSError`."""
    # The buffers must live until the call returns.
    buffers = [ctypes.create_string_buffer(value) if isinstance(value, bytes) else value for value in arguments]
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in buffers]
    ctypes.set_errno(0)
    return _checked(_LIBC.syscall(ctypes.c_long(_NUMBER[name]), *values))


def _checked(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# --- kernel interfaces -----------------------------------------------------------------------


@attack("kernel interfaces", "vsock, which leads to the hypervisor")
def _vsock(_bait: Bait) -> object:
    return socket.socket(40, socket.SOCK_STREAM)


@attack("kernel interfaces", "packet socket")
def _packet(_bait: Bait) -> object:
    return socket.socket(17, socket.SOCK_RAW)


@attack("kernel interfaces", "raw socket")
def _raw(_bait: Bait) -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)


@attack("kernel interfaces", "express data path socket")
def _xdp(_bait: Bait) -> object:
    return socket.socket(44, socket.SOCK_RAW)


@attack("kernel interfaces", "io_uring")
def _io_uring(_bait: Bait) -> object:
    return _call("io_uring_setup", 1, bytes(120))


@attack("kernel interfaces", "user namespace")
def _user_namespace(_bait: Bait) -> object:
    return not _checked(_LIBC.unshare(_NEW_USER))


@attack("kernel interfaces", "user and network namespace by clone3")
def _clone3(_bait: Bait) -> object:
    arguments = (_NEW_USER | _NEW_NET).to_bytes(8, "little") + bytes(24) + (17).to_bytes(8, "little") + bytes(24)
    pid = _call("clone3", arguments, 64)
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)


@attack("kernel interfaces", "joining another process's network")
def _setns(bait: Bait) -> object:
    return not _call("setns", os.open(f"/proc/{bait['pid']}/ns/net", os.O_RDONLY), _NEW_NET)


@attack("kernel interfaces", "mount, in a namespace of its own")
def _mount(_bait: Bait) -> object:
    # Private first: on the host nothing of this must be seen by others.
    _checked(_LIBC.unshare(_NEW_NS))
    _checked(_LIBC.mount(b"none", b"/", None, 0x4_4000, None))
    return not _checked(_LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None))


@attack("kernel interfaces", "file system by fsopen")
def _fsopen(_bait: Bait) -> object:
    return _call("fsopen", b"tmpfs", 0)


@attack("kernel interfaces", "mount by open_tree")
def _open_tree(_bait: Bait) -> object:
    return _call("open_tree", -100, b"/tmp", 1)


@attack("kernel interfaces", "chroot")
def _chroot(_bait: Bait) -> object:
    return not _checked(_LIBC.chroot(b"/"))


@attack("kernel interfaces", "BPF map")
def _bpf(_bait: Bait) -> object:
    return _call("bpf", 0, b"".join(n.to_bytes(4, "little") for n in (2, 4, 4, 1)) + bytes(56), 72)


@attack("kernel interfaces", "performance counters")
def _perf(_bait: Bait) -> object:
    # A software counter of this process, of the structure's first size.
    attributes = (1).to_bytes(4, "little") + (64).to_bytes(4, "little") + bytes(56)
    return _call("perf_event_open", attributes, 0, -1, -1, 0)


@attack("kernel interfaces", "userfaultfd")
def _userfaultfd(_bait: Bait) -> object:
    return _call("userfaultfd", 0)


@attack("kernel interfaces", "the kernel's key store")
def _add_key(_bait: Bait) -> object:
    return _call("add_key", b"user", b"sealtape", b"x", 1, -2)


@attack("kernel interfaces", "file by handle, past every mount")
def _handle(_bait: Bait) -> object:
    # What `name_to_handle_at` makes of a path is guessable: the inode's number, mostly.
    handle = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(132))
    mount = ctypes.create_string_buffer(8)
    _call("name_to_handle_at", -100, os.getcwd().encode(), handle, mount, 0)  # noqa: PTH109
    return _call("open_by_handle_at", os.open(".", os.O_RDONLY), handle, os.O_RDONLY)


@attack("kernel interfaces", "kernel settings")
def _settings(_bait: Bait) -> object:
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@attack("kernel interfaces", "the kernel's log")
def _kmsg(_bait: Bait) -> object:
    return os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)


@attack("kernel interfaces", "making a device node")
def _mknod(_bait: Bait) -> object:
    path = f"/dev/shm/sealtape-{os.getpid()}"  # noqa: S108
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 0))
    os.unlink(path)  # noqa: PTH108
    return True


# --- other processes -------------------------------------------------------------------------


def _is_bait(bait: Bait) -> bool:
    """Whether the number means the host's process; in a sandbox it can be another one, or none."""
    return bait["token"] in Path(f"/proc/{bait['pid']}/cmdline").read_text(encoding="utf-8")


@attack("other processes", "command lines of all")
def _cmdlines(bait: Bait) -> object:
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # it has ended
            if _is_bait({**bait, "pid": name}):
                return name
    return None


@attack("other processes", "environment")
def _environ(bait: Bait) -> object:
    return bait["token"] in Path(f"/proc/{bait['pid']}/environ").read_text(encoding="utf-8")


@attack("other processes", "working folder")
def _cwd(bait: Bait) -> object:
    return bait["token"] in Path(f"/proc/{bait['pid']}/cwd/secret").read_text(encoding="utf-8")


@attack("other processes", "root folder")
def _root(bait: Bait) -> object:
    return bait["token"] in Path(f"/proc/{bait['pid']}/root{bait['tmp']}/secret").read_text(encoding="utf-8")


@attack("other processes", "open files")
def _fds(bait: Bait) -> object:
    return _is_bait(bait) and os.listdir(f"/proc/{bait['pid']}/fd")  # noqa: PTH208


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _read_memory(pid: int, address: int, length: int) -> bytes:
    target = ctypes.create_string_buffer(length)
    here = _Vector(ctypes.addressof(target), length)
    there = _Vector(address, length)
    _checked(_LIBC.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    return target.raw


@attack("other processes", "memory")
def _memory(bait: Bait) -> object:
    return bait["token"].encode() == _read_memory(bait["pid"], bait["address"], len(bait["token"]))


@attack("other processes", "memory of the same sandbox")
def _own_memory(bait: Bait) -> object:
    # Its own: a filter that lets this pass lets a test read any process of the same user.
    text = ctypes.create_string_buffer(bait["token"].encode())
    return _read_memory(os.getpid(), ctypes.addressof(text), len(bait["token"]))


@attack("other processes", "memory by way of /proc")
def _mem(bait: Bait) -> object:
    descriptor = os.open(f"/proc/{bait['pid']}/mem", os.O_RDONLY)
    return bait["token"].encode() == os.pread(descriptor, len(bait["token"]), bait["address"])


@attack("other processes", "ptrace")
def _ptrace(bait: Bait) -> object:
    attach, detach = 16, 17
    _checked(_LIBC.ptrace(attach, bait["pid"], None, None))
    os.waitpid(bait["pid"], 0x4000_0000)
    _LIBC.ptrace(detach, bait["pid"], None, None)
    return True


@attack("other processes", "a signal")
def _signal(bait: Bait) -> object:
    os.kill(bait["pid"], 0)
    return _is_bait(bait)


@attack("other processes", "a descriptor out of its hands")
def _getfd(bait: Bait) -> object:
    process = _call("pidfd_open", bait["pid"], 0)
    descriptor = _call("pidfd_getfd", process, bait["fd"], 0)
    return bait["token"].encode() in os.pread(descriptor, 4096, 0)


@attack("other processes", "System V shared memory")
def _shared_memory(bait: Bait) -> object:
    identifier = _checked(_LIBC.shmget(bait["sysv"], 0, 0))
    _LIBC.shmat.restype = ctypes.c_void_p
    address = _LIBC.shmat(identifier, None, 0o10000)
    return bait["token"].encode() == ctypes.string_at(address, len(bait["token"]))
