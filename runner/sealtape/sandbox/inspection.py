"""What `docker inspect` must say of a guest's container, as checks. Data in, data out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sealtape.sandbox.policy import Policy
from sealtape.sandbox.verdict import Check, engine_check

NO_NEW_PRIVILEGES = "no-new-privileges"
_DEVICES = ("Devices", "DeviceRequests", "DeviceCgroupRules")


def container_checks(facts: dict[str, Any], policy: Policy, workdir: str) -> list[Check]:
    """Compare the daemon's account of a container with the policy it was made from."""
    host, config = facts["HostConfig"], facts["Config"]
    networks = sorted(facts["NetworkSettings"]["Networks"]) or ["none"]
    mounts = sorted(f"{mount['Destination']} {'rw' if mount['RW'] else 'ro'}" for mount in facts["Mounts"])
    wanted = sorted(f"{mount.target} {'rw' if mount.writable else 'ro'}" for mount in policy.binds(workdir))
    options = host["SecurityOpt"] or []
    shared = [name for name in ("PidMode", "UTSMode", "UsernsMode") if host[name] not in ("", "private")]
    devices = [entry for name in _DEVICES for entry in host.get(name) or []]
    visible = "\0".join([*(config["Env"] or []), *(config["Cmd"] or []), *map(str, config["Labels"].values())])
    keys = [name for name, value in policy.secrets.items() if value in visible]
    extra = sorted(set(mounts).symmetric_difference(wanted))
    proxies = [name for name, _, value in _variables(config) if name.lower().endswith("_proxy") and "@" in value]
    health = (config.get("Healthcheck") or {}).get("Test")
    unconfined = [option for option in options if option.startswith(("seccomp", "apparmor", "systempaths"))]
    user = f"{policy.uid}:{policy.gid}"
    return [
        engine_check("network", "none", host["NetworkMode"], "network_mode none"),
        engine_check("networks", "none", ", ".join(networks), "network_mode none"),
        engine_check("bind mounts", "the policy's", _listed(extra, "the policy's"), "removing the mount"),
        engine_check("root", "read-only", "read-only" if host["ReadonlyRootfs"] else "writable", "read_only"),
        engine_check("dropped capabilities", "ALL", _listed(host["CapDrop"], "none"), "cap_drop ALL"),
        engine_check("added capabilities", "none", _listed(host["CapAdd"], "none"), "no cap_add"),
        engine_check("privileged", expected=False, found=host["Privileged"], closes="no privileged"),
        engine_check(
            "no-new-privileges",
            expected=True,
            found=NO_NEW_PRIVILEGES in options,
            closes=f"security_opt {NO_NEW_PRIVILEGES}",
        ),
        engine_check("profiles", "docker's own", _listed(unconfined, "docker's own"), "no such security_opt"),
        engine_check("ipc namespace", "private", host["IpcMode"], "ipc_mode private"),
        engine_check("host's namespaces", "none", _listed(shared, "none"), "no pid, uts or userns mode"),
        engine_check("devices passed in", "none", _listed(devices, "none"), "no devices"),
        engine_check("user of the container", user, config["User"], "the policy's uid and gid"),
        engine_check("memory limit", policy.limits.memory, host["Memory"], "mem_limit"),
        engine_check("process limit", policy.limits.processes, host["PidsLimit"], "pids_limit"),
        engine_check("health check", "NONE", _listed(health, "the image's"), "healthcheck NONE"),
        engine_check("proxy passwords", "none", _listed(proxies, "none"), "use_config_proxy False"),
        engine_check("keys in docker inspect", "none", _listed(keys, "none"), "taking the key out of the guest"),
    ]


def _variables(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [entry.partition("=") for entry in config["Env"] or []]


def _listed(items: Sequence[Any] | None, nothing: str) -> str:
    return ", ".join(str(item) for item in items) if items else nothing
