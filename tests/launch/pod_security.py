"""Kubernetes' Pod Security Standard *restricted*, as its documentation states it.

It includes the standard *baseline*. The fields for Windows are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECCOMP = {"RuntimeDefault", "Localhost"}
SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}


def violations(pod: Manifest) -> list[str]:
    """Return how the spec of a pod violates the standard, in the words of the API server."""
    return [
        *_of_pod(pod),
        *(each for main in _containers(pod) for each in _of_container(pod, main)),
    ]


def templates(part: object) -> Iterator[Manifest]:
    """Yield every pod template in an object, wherever it is."""
    if isinstance(part, list):
        for each in part:
            yield from templates(each)
    elif isinstance(part, dict):
        if "containers" in (part.get("spec") or {}):
            yield part
        for each in part.values():
            yield from templates(each)


def _containers(pod: Manifest) -> list[Manifest]:
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [main for kind in kinds for main in pod.get(kind, [])]


def _of_pod(pod: Manifest) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield f"host namespaces ({field}=true)"
    for volume in pod.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"restricted volume types (volume {volume['name']} uses {', '.join(kinds)})"
    security = pod.get("securityContext", {})
    for each in security.get("sysctls", []):
        if each["name"] not in SYSCTLS:
            yield f"forbidden sysctls ({each['name']})"
    yield from _of_both("pod", security)


def _of_container(pod: Manifest, main: Manifest) -> Iterator[str]:
    name, security = main["name"], main.get("securityContext", {})
    shared = pod.get("securityContext", {})
    yield from _of_both(f"container {name}", security)
    if security.get("privileged"):
        yield f"privileged (container {name})"
    if security.get("allowPrivilegeEscalation") is not False:
        yield f"allowPrivilegeEscalation != false (container {name})"
    capabilities = security.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield f"unrestricted capabilities (container {name} must drop ALL)"
    if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
        yield f"unrestricted capabilities (container {name} adds some)"
    if not security.get("runAsNonRoot", shared.get("runAsNonRoot")):
        yield f"runAsNonRoot != true (container {name})"
    profile = security.get("seccompProfile", shared.get("seccompProfile", {}))
    if profile.get("type") not in SECCOMP:
        yield f"seccompProfile (container {name})"
    if security.get("procMount", "Default") != "Default":
        yield f"procMount (container {name})"
    for port in main.get("ports", []):
        if port.get("hostPort"):
            yield f"hostPort (container {name})"
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        for action in ("httpGet", "tcpSocket"):
            if main.get(probe, {}).get(action, {}).get("host"):
                yield f"probe or lifecycle host (container {name})"


def _of_both(where: str, security: Manifest) -> Iterator[str]:
    if security.get("runAsUser") == 0:
        yield f"runAsUser=0 ({where})"
    if security.get("seccompProfile", {}).get("type") == "Unconfined":
        yield f"seccompProfile ({where})"
    if security.get("appArmorProfile", {}).get("type") == "Unconfined":
        yield f"forbidden AppArmor profile ({where})"
    options = security.get("seLinuxOptions", {})
    if options.get("type", "") not in SELINUX or options.get("user") or options.get("role"):
        yield f"seLinuxOptions ({where})"
