"""The seccomp filter: by a small BPF machine for every architecture, and for real in a child process."""

from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest

from sealtape.guest import seccomp

ALLOW = 0x7FFF_0000


def decide(program, arch, number, argument=0):
    """What the filter returns, by the rules of classic BPF."""
    data = {0: number, 4: arch, 16: argument & 0xFFFF_FFFF}
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        match code:
            case 0x20:
                accumulator = data[operand]
            case 0x06:
                return operand
            case 0x15:
                position += if_true if accumulator == operand else if_false
            case 0x35:
                position += if_true if accumulator >= operand else if_false
            case 0x45:
                position += if_true if accumulator & operand else if_false
            case _:
                raise AssertionError(code)


def refused(code):
    return 0x0005_0000 | code


@pytest.fixture(params=sorted(seccomp.ARCHITECTURES))
def arch(request):
    return seccomp.ARCHITECTURES[request.param]


@pytest.fixture
def ask(arch):
    program = seccomp.build_filter(arch)
    return lambda name, argument=0: decide(program, arch.audit, arch.calls[name], argument)


def test_every_jump_stays_in_the_program(arch):
    program = seccomp.build_filter(arch)
    for position, (_code, if_true, if_false, _operand) in enumerate(program):
        assert position + 1 + max(if_true, if_false) <= len(program)
    assert len(program) < 4096


@pytest.mark.parametrize("family", range(64))
def test_families_are_listed(ask, family):
    expected = ALLOW if family in seccomp.ALLOWED_FAMILIES.values() else refused(errno.EAFNOSUPPORT)
    assert ask("socket", family) == expected
    assert ask("socketpair", family) == expected


@pytest.mark.parametrize("bit", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_new_namespace(ask, bit):
    assert ask("clone", bit | 17) == refused(errno.EPERM)
    assert ask("unshare", bit) == refused(errno.EPERM)


def test_threads_and_processes_are_made_as_ever(ask):
    assert ask("clone", 17) == ALLOW
    assert ask("clone", 0x3D0F00) == ALLOW
    assert ask("unshare", 0x400) == ALLOW
    assert ask("unshare", 0x80) == refused(errno.EPERM)


def test_what_is_refused_and_how(ask, arch):
    absent = {"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"}
    special = {"socket", "socketpair", "clone", "unshare"}
    for name in set(arch.calls) - special:
        assert ask(name) == refused(errno.ENOSYS if name in absent else errno.EPERM), name


def test_other_calls_pass(arch):
    program = seccomp.build_filter(arch)
    for number in set(range(500)) - set(arch.calls.values()):
        assert decide(program, arch.audit, number) == ALLOW


def test_a_foreign_architecture_and_x32_are_refused():
    machine = seccomp.ARCHITECTURES["x86_64"]
    program = seccomp.build_filter(machine)
    assert decide(program, 0x40000003, 1) == refused(errno.EPERM)
    assert decide(program, machine.audit, 0x40000000 | 41, 2) == refused(errno.EPERM)


def test_the_architectures_list_the_same_calls():
    first, second = seccomp.ARCHITECTURES.values()
    assert set(first.calls) == set(second.calls)


CHILD = """
import ctypes, errno, json, socket, sys, threading
from sealtape.guest import seccomp

def attempts():
    libc = ctypes.CDLL(None, use_errno=True)
    def call(number, *arguments):
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
        return "" if result >= 0 else errno.errorcode[ctypes.get_errno()]
    found = {"io_uring": call(425, 0, 0)}
    # AF_PACKET needs a capability, AF_ALG needs none: both would open here as root.
    for name, family in {"netlink": 16, "unix": 1, "packet": 17, "vsock": 40}.items():
        try:
            socket.socket(family, socket.SOCK_STREAM if family in (1, 40) else socket.SOCK_RAW).close()
            found[name] = ""
        except OSError as error:
            found[name] = errno.errorcode[error.errno]
    thread = threading.Thread(target=lambda: found.update(thread="ran"))
    thread.start()
    thread.join()
    return found

if sys.argv[1] == "locked":
    seccomp.lock()
print(json.dumps(attempts()))
"""


def test_for_real():
    def run(how):
        done = subprocess.run([sys.executable, "-c", CHILD, how], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    control = run("open")
    assert control["unix"] == control["netlink"] == ""
    assert control["io_uring"] != "ENOSYS"
    locked = run("locked")
    assert locked["unix"] == locked["netlink"] == ""
    assert locked["thread"] == "ran"
    assert (locked["io_uring"], locked["packet"], locked["vsock"]) == ("ENOSYS", "EAFNOSUPPORT", "EAFNOSUPPORT")


def test_an_unknown_machine_is_an_error(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(OSError, match="no seccomp filter is known for pdp11"):
        seccomp.lock()
