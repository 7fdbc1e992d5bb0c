"""The engine that makes containers. The only module that imports the Docker SDK."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import socket
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
import requests
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import Mount as DockerMount

from sealtape.config import Settings
from sealtape.errors import EngineError
from sealtape.sandbox.daemon import tip_for, unreachable, unsuitable
from sealtape.sandbox.engine import Chunk, Guest, Process, Progress
from sealtape.sandbox.image import Recipe, make_recipe
from sealtape.sandbox.inspection import NO_NEW_PRIVILEGES, container_checks
from sealtape.sandbox.policy import ENTRY, HOSTNAME, Mount, Policy, guest_ids, placed, staged
from sealtape.sandbox.rundir import is_left_over, remove_left_over_folders, run_folder
from sealtape.sandbox.verdict import Check

WORKDIR = "/project"
_LABEL = "sealtape.run"
_HOST = "sealtape.host"
_DOOR_IN_BROKER = "/door"
_CA_IN_BROKER = "/sealtape/ca.pem"


def docker_arguments(policy: Policy) -> dict[str, Any]:
    """The policy as keyword arguments of docker-py's `containers.create`. Pure."""
    return {
        "command": ["python", "-I", "-S", ENTRY],
        # The image's own entry point would run before the lock.
        "entrypoint": [],
        "environment": dict(policy.env),
        "working_dir": WORKDIR,
        "mounts": [_docker_mount(mount) for mount in policy.binds(WORKDIR)],
        "tmpfs": _tmpfs(policy),
        "shm_size": policy.limits.shared_memory,
        "network_mode": "none",
        # The kernel's own default is no ::1 in a namespace like this one.
        "sysctls": {"net.ipv6.conf.all.disable_ipv6": "0"} if Path("/proc/sys/net/ipv6").exists() else {},
        "hostname": HOSTNAME,
        "mem_limit": policy.limits.memory,
        "pids_limit": policy.limits.processes,
        "stdin_open": True,
        **_confined(policy.uid, policy.gid),
    }


def _confined(uid: int, gid: int) -> dict[str, Any]:
    """What holds for a guest and for a broker alike."""
    return {
        "user": f"{uid}:{gid}",
        "read_only": True,
        "cap_drop": ["ALL"],
        # SELinux would keep the guest from the project, unless every file in it were labelled anew.
        "security_opt": [NO_NEW_PRIVILEGES, "label=disable"],
        "ipc_mode": "private",
        "init": True,
        # A health check of the image would run beside the guest, without its lock.
        "healthcheck": {"test": ["NONE"]},
        # Otherwise docker-py puts the proxy of the client's configuration in, with its password.
        "use_config_proxy": False,
    }


def _docker_mount(mount: Mount) -> DockerMount:
    return DockerMount(mount.target, mount.source, type=mount.kind, read_only=not mount.writable)


def _tmpfs(policy: Policy) -> dict[str, str]:
    """Compiled extensions are loaded from /tmp: exec. Nothing that would need a device or a set-uid bit."""
    writable = dict.fromkeys(policy.tmpfs, "rw,exec,nosuid,nodev,mode=1777")
    hidden = [placed(path, WORKDIR) for path in (*policy.empty_folders, *policy.host_environments)]
    return {**writable, **dict.fromkeys(hidden, "ro,nosuid,nodev,noexec,mode=0555")}


class DockerEngine:
    """See `Engine`."""

    name = "docker"

    def __init__(self) -> None:
        self._client: Any = None
        self._images: dict[str, str] = {}
        self._ca_bundle: Path | None = None

    def usable(self) -> str | None:
        address = _daemon_address()
        if reason := unreachable(address):
            return reason
        try:
            self._client = docker.from_env() if os.environ.get("DOCKER_HOST") else docker.DockerClient(address)
            # The SDK keeps connections; without this they would be closed with a warning, if at all.
            weakref.finalize(self, self._client.close)
            facts = self._client.info()
        except (DockerException, requests.exceptions.RequestException) as error:
            return f"the daemon at {address} does not answer: {_reason(error)}"
        return unsuitable(address, facts)

    def prepare(self, settings: Settings, progress: Progress, *, broker: bool = False) -> None:
        self._ca_bundle = settings.build.ca_bundle
        for target in ("guest", "broker") if broker else ("guest",):
            with _explained(f"the image {target!r} could not be built"):
                self._images[target] = _image(self._client, make_recipe(settings, target), progress)

    @contextmanager
    def start(self, policy: Policy) -> Iterator[Guest]:
        with staged(policy) as ready, _given(policy.out, policy.uid, policy.gid):
            if ready.stage is None:
                raise RuntimeError("a staged policy has a stage")
            arguments = {**docker_arguments(ready), "labels": _labels(ready.stage)}
            with (
                self._container("guest", arguments) as container,
                closing(_DockerGuest(self._client, container, ready)) as guest,
            ):
                yield guest

    @contextmanager
    def open_door(self, argv: Sequence[str], *, host_loopback: bool) -> Iterator[tuple[Process, Mount, str]]:
        uid, gid = guest_ids()
        with run_folder() as folder, self._volume(_labels(folder)) as volume:
            mounts = [DockerMount(_DOOR_IN_BROKER, volume, type="volume")]
            environment = {}
            if self._ca_bundle:
                mounts.append(DockerMount(_CA_IN_BROKER, str(self._ca_bundle.resolve()), type="bind", read_only=True))
                environment["SSL_CERT_FILE"] = _CA_IN_BROKER
            arguments = {
                "command": ["python", "-I", *argv],
                "environment": environment,
                "mounts": mounts,
                "tmpfs": {"/tmp": "rw,nosuid,nodev,noexec,mode=1777"},  # noqa: S108 - the broker's
                "network_mode": "host" if host_loopback else "bridge",
                "stdin_open": True,
                "labels": _labels(folder),
                **_confined(uid, gid),
            }
            with (
                self._container("broker", arguments) as container,
                closing(_DockerProcess(self._client, container)) as process,
            ):
                process.begin()
                yield process, Mount(source=volume, target="/sealtape/door", kind="volume"), _DOOR_IN_BROKER

    def reap(self) -> None:
        remove_left_over_folders()
        mine = {"label": [_LABEL, f"{_HOST}={_this_host()}"]}
        with _explained("what an earlier run left could not be removed"):
            for container in self._client.containers.list(all=True, filters=mine, ignore_removed=True):
                if is_left_over(Path(container.labels[_LABEL])):
                    _remove(container)
            for volume in self._client.volumes.list(filters=mine):
                if is_left_over(Path(volume.attrs["Labels"][_LABEL])):
                    _remove(volume)

    @contextmanager
    def _container(self, target: str, arguments: dict[str, Any]) -> Iterator[Any]:
        # Named here: if this process is interrupted within the call, there is still something to remove.
        name = f"sealtape-{target}-{secrets.token_hex(6)}"
        try:
            with _explained(f"the {target}'s container could not be made"):
                container = self._client.containers.create(self._images[target], name=name, **arguments)
            yield container
        finally:
            with contextlib.suppress(NotFound):
                _remove(self._client.containers.get(name))

    @contextmanager
    def _volume(self, labels: dict[str, str]) -> Iterator[str]:
        with _explained("the volume for the broker's socket could not be made"):
            volume = self._client.volumes.create(name=f"sealtape-door-{secrets.token_hex(6)}", labels=labels)
        try:
            yield volume.name
        finally:
            _remove(volume)


class _DockerProcess:
    """A container's process, through the attach socket: one stream, in the order it was written."""

    def __init__(self, client: Any, container: Any) -> None:
        self._client = client
        self._container = container
        self._attached: Any = None
        self._socket: Any = None

    def begin(self) -> None:
        with _explained("the container did not start"):
            parameters = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            # Before the start, or the first output would be lost.
            attached = self._client.api.attach_socket(self._container.id, params=parameters)
            self._attached, self._socket = attached, getattr(attached, "_sock", attached)
            self._socket.settimeout(None)
            self._container.start()

    def close(self) -> None:
        if self._attached is not None:
            self._attached.close()
            self._socket.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; its output tells why
            self._socket.sendall(data)

    def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def output(self) -> Iterator[Chunk]:
        """Frames of the daemon: a byte for the stream, three of padding, a length, and the data."""
        while header := self._exactly(8):
            stream, length = struct.unpack(">B3xI", header)
            data = self._exactly(length)
            yield ("err" if stream == 2 else "out"), data  # noqa: PLR2004 - stderr

    def _exactly(self, length: int) -> bytes:
        """`length` bytes, or none where the stream ends before."""
        data = b""
        while len(data) < length:
            try:
                part = self._socket.recv(length - len(data))
            except OSError:
                part = b""
            if not part:
                return b""
            data += part
        return data

    def wait(self, timeout: float | None = None) -> int:
        try:
            return int(self._container.wait(timeout=timeout)["StatusCode"])
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
            raise TimeoutError from error

    def interrupt(self) -> None:
        self._signal("SIGINT")

    def kill(self) -> None:
        self._signal("SIGKILL")

    def _signal(self, name: str) -> None:
        with contextlib.suppress(APIError):  # it has ended
            self._container.kill(signal=name)


class _DockerGuest(_DockerProcess):
    """See `Guest`."""

    workdir = WORKDIR
    rlimits: Mapping[str, int] = {"RLIMIT_CORE": 0}

    def __init__(self, client: Any, container: Any, policy: Policy) -> None:
        super().__init__(client, container)
        self._policy = policy
        self.mounts = {
            **{mount.target: mount.writable for mount in policy.binds(WORKDIR)},
            **{target: options.startswith("rw") for target, options in _tmpfs(policy).items()},
            "/etc/hostname": False,
        }
        self.required = frozenset(self.mounts)
        self.mounts |= dict.fromkeys(_INIT, False)

    def inspect(self) -> list[Check]:
        """What the daemon says the container is, however it came to be so."""
        with _explained("the container could not be inspected"):
            facts = self._client.api.inspect_container(self._container.id)
        return container_checks(facts, self._policy, WORKDIR)


# Where Docker's versions put the init they bring along.
_INIT = ("/sbin/docker-init", "/usr/sbin/docker-init")


def _image(client: Any, recipe: Recipe, progress: Progress) -> str:
    """The name of the recipe's image, which is built if there is none yet."""
    bases = tuple(_base_id(client, base, progress) for base in recipe.bases)
    tag = recipe.tag(bases)
    with contextlib.suppress(ImageNotFound):
        client.images.get(tag)
        return tag
    progress(f"building {tag} (once, until something that goes into it changes)")
    _build(client, recipe, tag, progress)
    for image in client.images.list(name=recipe.repository):
        for old in image.tags:
            if old.startswith(f"{recipe.repository}:") and old != tag:
                with contextlib.suppress(APIError):  # in use by another run, which will not be the last one
                    client.images.remove(old)
    return tag


def _base_id(client: Any, base: str, progress: Progress) -> str:
    try:
        return str(client.images.get(base).id)
    except ImageNotFound:
        progress(f"pulling {base}")
    try:
        return str(client.images.pull(base if ":" in base or "@" in base else f"{base}:latest").id)
    except (APIError, NotFound) as error:
        raise EngineError(
            f"the base image {base} is not here and cannot be pulled: {_reason(error)}",
            tip="set SEALTAPE_BASE_IMAGE to an image that is, with Python 3.11 or newer and its venv module",
        ) from error


def _build(client: Any, recipe: Recipe, tag: str, progress: Progress) -> None:
    tail: list[str] = []
    failure = ""
    steps = client.api.build(
        fileobj=io.BytesIO(recipe.context()),
        custom_context=True,
        dockerfile=recipe.containerfile,
        target=recipe.target,
        buildargs=recipe.build_args,
        tag=tag,
        rm=True,
        forcerm=True,
        decode=True,
    )
    for message in steps:
        for line in message.get("stream", "").splitlines():
            if line.startswith("Step "):
                progress(line)
                tail.clear()
            elif line.strip() and not line.startswith((" ---> ", "Removing intermediate")):
                tail.append(line)
        failure = message.get("error", failure)  # the last message; reading on closes the connection
    if failure:
        shown = "".join(f"\n    {line}" for line in tail[-_TAIL:])
        raise EngineError(
            f"the image's build failed: {failure}{shown}",
            tip="mend that step in the Containerfile; behind a proxy with its own CA set SEALTAPE_CA_BUNDLE",
        )


_TAIL = 15


def _labels(folder: Path) -> dict[str, str]:
    return {_LABEL: str(folder), _HOST: _this_host()}


def _this_host() -> str:
    """Several machines can share a daemon; each tidies up after itself only."""
    return f"{socket.gethostname()}:{os.getuid()}"


@contextmanager
def _given(out: Path, uid: int, gid: int) -> Iterator[None]:
    """`out` belongs to the guest's user while the guest lives, and to the caller with all in it afterwards."""
    if os.getuid() == uid:
        yield
        return
    os.chown(out, uid, gid)
    try:
        yield
    finally:
        for folder, folders, files in os.walk(out):
            for name in (".", *folders, *files):
                os.chown(Path(folder, name), os.getuid(), os.getgid(), follow_symlinks=False)


def _remove(thing: Any) -> None:
    """A container with its anonymous volumes, or a volume; gone already is well."""
    with _explained("a container or volume could not be removed"), contextlib.suppress(NotFound):
        thing.remove(force=True, **({"v": True} if hasattr(thing, "logs") else {}))


def _daemon_address() -> str:
    """DOCKER_HOST, else docker's current context, which the SDK does not look at by itself."""
    if host := os.environ.get("DOCKER_HOST"):
        return host
    try:
        context = ContextAPI.get_current_context()
    except (DockerException, OSError, ValueError):
        context = None  # an unreadable configuration: the default address is still worth a try
    return (context.Host if context else None) or "unix:///var/run/docker.sock"


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """The SDK's errors as one sentence."""
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        raise EngineError(f"{what}: {_reason(error)}", tip=tip_for(_reason(error))) from error


def _reason(error: Exception) -> str:
    return (getattr(error, "explanation", None) or str(error)).strip()
