"""The probe list: small attempts to get out of the sandbox, made before the tests. Standard library only.

Each probe says what it tries, what it expects and what would close it. All of them together take
well under 300 ms. The order matters: where there is more than loopback, no later probe may send a
packet, and none does.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hmac
import os
import resource
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

Plan = dict[str, Any]
Finding = tuple[bool, str]


class Probe(NamedTuple):
    """One attempt. `attempt` returns whether the seal held, and what was found."""

    name: str
    tries: str
    expected: str
    closes: str
    attempt: Callable[[Plan], Finding]
    sends: bool = False


def run(plan: Plan) -> list[dict[str, Any]]:
    """Every probe's result, ready for JSON."""
    results: list[dict[str, Any]] = []
    for probe in PROBES:
        if probe.sends and not results[0]["ok"]:
            ok, found = False, "not tried: it would have sent a packet"
        else:
            try:
                ok, found = probe.attempt(plan)
            except OSError as error:
                ok, found = False, f"could not be tried: {error}"
        facts = {"name": probe.name, "expected": probe.expected, "found": found, "ok": ok, "closes": probe.closes}
        results.append(facts)
    return results


# --- the network -----------------------------------------------------------------------------


def _interfaces(_plan: Plan) -> Finding:
    """From the kernel, not from /sys/class/net: that can still show the host's interfaces."""
    names = {name for _, name in socket.if_nameindex()}
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        names.add(line.split(":")[0].strip())
    # Some kernels put tunnel devices into every network namespace. They are down, and raising one
    # takes a capability that the guest does not have.
    up = sorted(name for name in names if name != "lo" and _is_up(name))
    return not up, ", ".join(["lo", *up])


def _is_up(interface: str) -> bool:
    get_flags, is_up = 0x8913, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", interface.encode(), 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(sock, get_flags, request))
    return bool(flags & is_up)


def _routes(_plan: Plan) -> Finding:
    routes = [line.split()[0] for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    six = Path("/proc/net/ipv6_route")
    if six.exists():
        routes += [line.split()[-1] for line in six.read_text().splitlines()]
    outside = sorted({device for device in routes if device != "lo"})
    return not outside, f"a route through {', '.join(outside)}" if outside else "none"


# Addresses set aside for documentation (RFC 5737, RFC 3849): nobody is bothered if the seal is broken.
_OUTSIDE, _OUTSIDE_6, _METADATA = "192.0.2.1", "2001:db8::1", "169.254.169.254"
_UNREACHABLE = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.EACCES,
    errno.EPERM,
)


def _connect(family: int, kind: int, address: Any, refused: tuple[int, ...]) -> Finding:
    try:
        with socket.socket(family, kind) as sock:
            sock.settimeout(0.05)
            sock.connect(address)
            if kind == socket.SOCK_DGRAM:
                sock.send(b"")
    except TimeoutError:
        return False, "no answer, but the packet left"
    except OSError as error:
        return error.errno in refused, os.strerror(error.errno or 0).lower()
    return False, "connected"


def _tcp(_plan: Plan) -> Finding:
    return _connect(socket.AF_INET, socket.SOCK_STREAM, (_OUTSIDE, 443), _UNREACHABLE)


def _udp(_plan: Plan) -> Finding:
    return _connect(socket.AF_INET, socket.SOCK_DGRAM, (_OUTSIDE, 53), _UNREACHABLE)


def _tcp6(_plan: Plan) -> Finding:
    return _connect(socket.AF_INET6, socket.SOCK_STREAM, (_OUTSIDE_6, 443), _UNREACHABLE)


def _metadata(_plan: Plan) -> Finding:
    return _connect(socket.AF_INET, socket.SOCK_STREAM, (_METADATA, 80), _UNREACHABLE)


def _dns(_plan: Plan) -> Finding:
    start = time.monotonic()
    try:
        socket.getaddrinfo("example.com", 443)
    except socket.gaierror as error:
        took = round((time.monotonic() - start) * 1000)
        # A resolver that waits for an answer takes 5 s or more; a busy machine does not take that long.
        return took < 1000, f"{str(error.strerror).lower()} after {took} ms"  # noqa: PLR2004
    return False, "a name was resolved"


def _canary_tcp(plan: Plan) -> Finding:
    return _connect(socket.AF_INET, socket.SOCK_STREAM, tuple(plan["canaries"]["tcp"]), (errno.ECONNREFUSED,))


def _canary_abstract(plan: Plan) -> Finding:
    name = plan["canaries"]["abstract"]
    if name is None:
        return True, "the host has no abstract sockets"
    return _connect(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}", (errno.ECONNREFUSED,))


def _canary_file(plan: Plan) -> Finding:
    gone = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
    return _connect(socket.AF_UNIX, socket.SOCK_STREAM, plan["canaries"]["file"], gone)


def _own_loopback(_plan: Plan) -> Finding:
    families = [(socket.AF_INET, "127.0.0.1")]
    six = Path("/proc/net/if_inet6")
    if six.exists() and six.read_text().startswith("0" * 31 + "1 "):
        families.append((socket.AF_INET6, "::1"))
    for family, address in families:
        with socket.socket(family, socket.SOCK_STREAM) as server, socket.socket(family, socket.SOCK_STREAM) as client:
            server.bind((address, 0))
            server.listen(1)
            client.settimeout(2)
            client.connect(server.getsockname())
    return True, " and ".join(address for _, address in families)


# --- sockets and files -----------------------------------------------------------------------


def _unix_sockets(plan: Plan) -> Finding:
    seen = [path for path in plan["covered"] if _is_door(path)]
    # The host has looked through the project before, and /usr is large.
    closed = {target for target, writable in plan["mounts"].items() if not writable}
    skip = {target for target in closed if not target.startswith("/sealtape/")}
    for top in ("/sealtape", "/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm", os.environ["HOME"]):  # noqa: S108
        entries = [] if Path(top).is_symlink() else list(islice(_walk(top, skip), _FRESH))
        if len(entries) == _FRESH:
            return False, f"{top} holds more than a sandbox that has just begun"
        seen += [path for path in entries if _is_door(path)]
    seen += [path for path in closed if _is_door(path)]
    outside = [path for path in seen if not plan["door"] or not path.startswith(plan["door"] + "/")]
    return not outside, ", ".join(sorted(set(outside))) or "none"


_FRESH = 2000


def _walk(top: str, skip: set[str]) -> Iterator[str]:
    try:
        entries = list(os.scandir(top))
    except OSError:
        return  # what the guest may not list, its tests may not either
    for entry in entries:
        yield entry.path
        if entry.is_dir(follow_symlinks=False) and entry.path not in skip:
            yield from _walk(entry.path, skip)


def _is_door(path: str) -> bool:
    """A socket or a FIFO: what lies behind one is another process, and a read-only mount does not stop it."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _descriptors(_plan: Plan) -> Finding:
    extra = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names of numbers
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue  # the listing's own descriptor, closed by now
        if int(name) > 2 or stat.S_ISSOCK(mode):  # noqa: PLR2004 - stderr
            extra.append(f"{name} → {os.readlink(f'/proc/self/fd/{name}')}")  # noqa: PTH115
    return not extra, ", ".join(extra) or "none"


_FAMILIES = {"RDS": 21, "CAN": 29, "TIPC": 30, "BLUETOOTH": 31, "ALG": 38, "VSOCK": 40, "PACKET": 17, "XDP": 44}


def _families(_plan: Plan) -> Finding:
    opened = []
    for name, family in _FAMILIES.items():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket(family, kind).close()
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    opened.append(f"{name} ({os.strerror(error.errno or 0).lower()})")
            else:
                opened.append(name)
    return not opened, ", ".join(dict.fromkeys(opened)) or "refused"


def _system_call(number: int, *arguments: int) -> int:
    """The errno of a system call, 0 where it succeeded."""
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in arguments])
    if result >= 0:
        return 0
    return ctypes.get_errno()


def _io_uring(_plan: Plan) -> Finding:
    code = _system_call(425, 0, 0)
    return code == errno.ENOSYS, os.strerror(code).lower()


def _namespaces(_plan: Plan) -> Finding:
    new_user_namespace = 0x1000_0000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(ctypes.c_int(new_user_namespace)) == 0:
        return False, "a user namespace was made"
    code = ctypes.get_errno()
    return code == errno.EPERM, os.strerror(code).lower()


# --- privileges and processes ----------------------------------------------------------------


def _status(pid: str = "self") -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _capabilities(_plan: Plan) -> Finding:
    status = _status()
    held = [f"{name} {status[name]}" for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    held = [entry for entry in held if int(entry.split()[1], 16)]
    return not held, ", ".join(held) or "none"


def _privileges(_plan: Plan) -> Finding:
    value = _status()["NoNewPrivs"]
    return value == "1", "set" if value == "1" else "not set"


def _seccomp(_plan: Plan) -> Finding:
    value = _status()["Seccomp"]
    return value == "2", {"0": "off", "2": "on"}.get(value, value)


def _limits(plan: Plan) -> Finding:
    """Those that the entry sets, for want of an engine that does."""
    loose = [name for name, limit in plan["limits"].items() if resource.getrlimit(getattr(resource, name))[1] != limit]
    return not loose, f"not set: {', '.join(loose)}" if loose else "set"


def _user(plan: Plan) -> Finding:
    found = (os.getuid(), os.geteuid(), os.getgid(), os.getegid())
    groups = [group for group in os.getgroups() if group not in (plan["gid"], 65534)]
    ok = found == (plan["uid"], plan["uid"], plan["gid"], plan["gid"]) and not groups
    return ok, f"{os.getuid()}:{os.getgid()}" + (f" with groups {groups}" if groups else "")


def _processes(_plan: Plan) -> Finding:
    """Only the guest itself and its ancestors up to the sandbox's own init."""
    family, pid = set(), str(os.getpid())
    while pid != "0":
        family.add(pid)
        pid = _status(pid)["PPid"]
    others = [f"{pid} {_status(pid)['Name']}" for pid in _pids() if pid not in family]
    return not others, ", ".join(others[:5]) or "none"


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _keys(plan: Plan) -> Finding:
    """Keyed hashes are compared: the guest is never told what it looks for."""
    blobs = {"the environment": b"\0".join(b"=".join(pair) for pair in os.environb.items())}
    for pid in _pids():
        for name in ("environ", "cmdline"):
            try:
                blobs[f"/proc/{pid}/{name}"] = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # not readable for the tests either
    salt = bytes.fromhex(plan["salt"])
    distinct = {blob: place for place, blob in reversed(blobs.items())}
    hits = [
        f"{secret['name']} in {place}"
        for blob, place in distinct.items()
        for secret in plan["secrets"]
        if _contains(blob, secret["length"], secret["hmac"], salt)
    ]
    return not hits, ", ".join(hits) or "none"


def _contains(blob: bytes, length: int, digest: str, salt: bytes) -> bool:
    wanted = bytes.fromhex(digest)
    return any(
        hmac.digest(salt, blob[start : start + length], "sha256") == wanted for start in range(len(blob) - length + 1)
    )


# --- the file system -------------------------------------------------------------------------


def _root(_plan: Plan) -> Finding:
    written = [folder for folder in ("/", "/dev", "/etc", "/sealtape", "/usr") if _can_write(folder)]
    return not written, f"could write to {', '.join(written)}" if written else "read-only"


def _project(plan: Plan) -> Finding:
    closed = [target for target, writable in plan["mounts"].items() if not writable and Path(target).exists()]
    loose = [target for target in closed if Path(target).is_dir() and _can_write(target)]
    loose += [target for target in closed if not os.statvfs(target).f_flag & os.ST_RDONLY]
    return not loose, f"writable: {', '.join(sorted(set(loose)))}" if loose else "read-only"


def _can_write(folder: str) -> bool:
    path = Path(folder, f".sealtape-probe-{os.getpid()}")
    try:
        path.touch(exist_ok=False)
    except OSError:
        return False
    path.unlink()
    return True


def _kernel_files(_plan: Plan) -> Finding:
    names = ["/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/vm/drop_caches"]
    names += ["/proc/sysrq-trigger", "/sys/power/state", "/sys/kernel/uevent_helper"]
    opened = []
    for name in names:
        try:
            os.close(os.open(name, os.O_WRONLY))
        except OSError:
            continue
        opened.append(name)
    return not opened, f"writable: {', '.join(opened)}" if opened else "read-only"


# major, minor: null, zero, full, random, urandom, tty, console, ptmx; and the terminals of the guest's own /dev/pts.
_SAFE_DEVICES = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)}
_OWN_TERMINALS = 136


def _devices(_plan: Plan) -> Finding:
    odd = []
    for path in _walk("/dev", {"/dev/shm"}):  # noqa: S108
        status = os.lstat(path)
        number = (os.major(status.st_rdev), os.minor(status.st_rdev))
        block = stat.S_ISBLK(status.st_mode)
        if block or (stat.S_ISCHR(status.st_mode) and number not in _SAFE_DEVICES and number[0] != _OWN_TERMINALS):
            odd.append(path)
    return not odd, ", ".join(odd) or "only the usual ones"


def _mounts(plan: Plan) -> Finding:
    """All that the policy names, and the kernel's own; a mount below a read-only one only if it is read-only too."""
    named: dict[str, bool] = plan["mounts"]
    read_only = [target for target, writable in named.items() if not writable]
    odd = []
    seen = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        target = _unescape(fields[4])
        seen.add(target)
        locked = "ro" in fields[5].split(",")
        below = any(target.startswith(parent.rstrip("/") + "/") for parent in read_only if parent != "/")
        if target == "/" or target.startswith(("/proc", "/dev")) or named.get(target):
            continue
        # Docker leaves the folder of old control groups mounted writable, for a root that the guest is not.
        if target.startswith("/sys") and not os.access(target, os.W_OK):
            continue
        if not locked or not (target in named or below):
            odd.append(f"{target} ({after.split()[0]}{'' if locked else ', writable'})")
    odd += [f"{target} (missing)" for target in plan["required"] if os.path.realpath(target) not in seen]
    return not odd, ", ".join(odd) or "as the policy names them"


def _unescape(text: str) -> str:
    """Blanks and the like: mountinfo writes them as octal numbers."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")


def _masks(plan: Plan) -> Finding:
    readable = []
    for path in plan["masks"]:
        try:
            if Path(path).read_bytes():
                readable.append(path)
        except OSError:
            continue  # a link to where the guest sees nothing
    return not readable, f"readable: {', '.join(readable)}" if readable else f"empty ({len(plan['masks'])})"


_NO_NETWORK = "a network namespace with nothing but loopback"
_OWN_FILTER = "the guest's seccomp filter"

PROBES: tuple[Probe, ...] = (
    Probe("network interfaces", "list what is up", "only lo", _NO_NETWORK, _interfaces),
    Probe("routes", "read the kernel's routing tables", "none", _NO_NETWORK, _routes),
    Probe("TCP outward", "connect to an outside address", "unreachable", _NO_NETWORK, _tcp, sends=True),
    Probe("UDP outward", "send to an outside address", "unreachable", _NO_NETWORK, _udp, sends=True),
    Probe("IPv6 outward", "connect to an outside address", "unreachable", _NO_NETWORK, _tcp6, sends=True),
    Probe("cloud metadata", f"connect to {_METADATA}", "unreachable", _NO_NETWORK, _metadata, sends=True),
    Probe("DNS", "resolve an outside name", "fails at once", "nsswitch.conf with 'hosts: files'", _dns, sends=True),
    Probe("host's loopback", "connect to a port of the host", "refused", _NO_NETWORK, _canary_tcp, sends=True),
    Probe("host's abstract socket", "connect to it", "refused", _NO_NETWORK, _canary_abstract),
    Probe("host's socket file", "connect to it", "not there", "a tmpfs over the host's temporary folder", _canary_file),
    Probe("own loopback", "bind and connect", "usable", "an engine that raises lo", _own_loopback),
    Probe("unix sockets", "look for sockets and FIFOs", "none", "a tmpfs over the folder, or no mount", _unix_sockets),
    Probe("inherited files", "list open descriptors", "none", "closing them before the start", _descriptors),
    Probe("socket families", "open vsock, packet, alg, …", "refused", _OWN_FILTER, _families),
    Probe("io_uring", "set up a ring", "function not implemented", _OWN_FILTER, _io_uring),
    Probe("new namespaces", "make a user namespace", "operation not permitted", _OWN_FILTER, _namespaces),
    Probe("seccomp", "read /proc/self/status", "on", _OWN_FILTER, _seccomp),
    Probe("new privileges", "read /proc/self/status", "set", "no-new-privileges", _privileges),
    Probe("capabilities", "read all five sets", "none", "dropping ALL capabilities", _capabilities),
    Probe("user", "ask for uid and gid", "an ordinary user", "the policy's uid and gid", _user),
    Probe("limits", "ask for the resource limits", "set", "the entry's limits", _limits),
    Probe("other processes", "list /proc", "none", "a pid namespace with its own /proc", _processes),
    Probe("keys", "search every environment and command line", "none", "taking the key out of the guest", _keys),
    Probe("root file system", "write to it", "read-only", "a read-only root", _root),
    Probe("project", "write to it", "read-only", "read-only mounts", _project),
    Probe("kernel settings", "open /proc/sys for writing", "read-only", "a read-only /proc/sys", _kernel_files),
    Probe("devices", "list /dev", "only the usual ones", "a /dev of its own", _devices),
    Probe("mounts", "read mountinfo", "as the policy names them", "removing the mount", _mounts),
    Probe("masked files", "read them", "empty", "an empty file over each", _masks),
)
