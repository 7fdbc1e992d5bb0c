"""The guest's lock: no new privileges, and a seccomp filter. Standard library only.

The filter is put on by the guest itself, just before pytest starts, so that it is the same under
every engine and every Docker version. It takes away what a network namespace does not: socket
families with a way out of their own (vsock reaches the hypervisor), io_uring (which opens sockets
without a system call that a filter sees), and whatever could undo the namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALLOWED_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}

# Flags of clone(2) and unshare(2) that make a namespace: mount, cgroup, uts, ipc, user, pid, net.
NEW_NAMESPACES = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
# In clone(2) this bit belongs to the exit signal; only unshare(2) reads it as a time namespace.
NEW_TIME_NAMESPACE = 0x80

# System calls since Linux 5.1 have the same number everywhere.
_SHARED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
}


@dataclass(frozen=True)
class Architecture:
    """What a filter must know of a machine: its audit number and its system call numbers."""

    audit: int
    calls: Mapping[str, int]
    # x86-64 kernels also take the x32 calls, numbered from here: a second door to every call.
    second_table: int | None = None


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        audit=0xC000_003E,
        second_table=0x4000_0000,
        calls={
            "socket": 41,
            "socketpair": 53,
            "clone": 56,
            "ptrace": 101,
            "pivot_root": 155,
            "chroot": 161,
            "mount": 165,
            "umount2": 166,
            "init_module": 175,
            "delete_module": 176,
            "kexec_load": 246,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "unshare": 272,
            "perf_event_open": 298,
            "open_by_handle_at": 304,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "finit_module": 313,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
            **_SHARED,
        },
    ),
    "aarch64": Architecture(
        audit=0xC000_00B7,
        calls={
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "chroot": 51,
            "unshare": 97,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "ptrace": 117,
            "socket": 198,
            "socketpair": 199,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "clone": 220,
            "perf_event_open": 241,
            "open_by_handle_at": 265,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "finit_module": 273,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
            **_SHARED,
        },
    ),
}

# Calls with a rule of their own; every other call of the table is refused with EPERM.
_SPECIAL = ("socket", "socketpair", "clone", "unshare")
# "Not implemented" makes libraries fall back: glibc from clone3 to clone, libuv from io_uring to epoll.
_ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")

# Classic BPF: operation codes, and the offsets of struct seccomp_data.
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000

Instruction = tuple[int, int, int, int]


def build_filter(arch: Architecture) -> list[Instruction]:
    """The filter as BPF instructions `(code, jump if true, jump if false, operand)`."""
    calls = arch.calls
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, arch.audit),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if arch.second_table is not None:
        program += [(_JUMP_AT_LEAST, 0, 1, arch.second_table), _refuse(errno.EPERM)]
    for name, number in calls.items():
        if name not in _SPECIAL:
            code = errno.ENOSYS if name in _ABSENT else errno.EPERM
            program += [(_JUMP_EQUAL, 0, 1, number), _refuse(code)]
    for name in ("socket", "socketpair"):
        program += _when(calls[name], _only_families())
    program += _when(calls["clone"], _no_bits(NEW_NAMESPACES))
    program += _when(calls["unshare"], _no_bits(NEW_NAMESPACES | NEW_TIME_NAMESPACE))
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def lock() -> None:
    """Lock the calling process and all its children, for good. Raises `OSError`."""
    arch = ARCHITECTURES.get(platform.machine())
    if arch is None:
        raise OSError(errno.ENOSYS, f"no seccomp filter is known for {platform.machine()}")
    instructions = build_filter(arch)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(instructions), ctypes.cast(buffer, ctypes.c_void_p))
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    _prctl(set_no_new_privileges, 1, 0)
    _prctl(set_seccomp, filter_mode, ctypes.addressof(program))


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _prctl(option: int, second: int, third: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(value) for value in (second, third, 0, 0)]
    if libc.prctl(ctypes.c_int(option), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


def _when(number: int, rule: Sequence[Instruction]) -> list[Instruction]:
    """`rule` for one system call; the rule ends with a return."""
    return [(_JUMP_EQUAL, 0, len(rule), number), *rule]


def _only_families() -> list[Instruction]:
    families = list(ALLOWED_FAMILIES.values())
    tests = [(_JUMP_EQUAL, len(families) - index, 0, family) for index, family in enumerate(families)]
    # The last test stands directly before the refusal, so a match jumps over that one instruction.
    return [(_LOAD, 0, 0, _FIRST_ARGUMENT), *tests, _refuse(errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]


def _no_bits(bits: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_ANY_BIT, 0, 1, bits),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
