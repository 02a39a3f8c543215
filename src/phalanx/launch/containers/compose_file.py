"""What the services of a compose file and of a Swarm stack have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.launch.containers.container import (
    CREDENTIALS_PATH,
    CREDENTIALS_VARIABLE,
    PORT,
    Container,
    Mount,
    MountKind,
)
from phalanx.launch.environment import task_variables
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.task_commands import make_starts
from phalanx.launch.tensorboard import tensorboard_command


def make_services(
    job: Job, container: Container, grace: float
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """A service for each task; its name is the task's, and with it the host of its address."""
    job.validate()
    container.validate()
    addresses = {task: f"{task}:{PORT}" for task in job.listening()}
    for start in make_starts(job, addresses, container.python):
        key = {CREDENTIALS_VARIABLE: CREDENTIALS_PATH} if container.credentials else {}
        environment = {**task_variables(job, start.task.role, start.variables), **key}
        labels = {**container.labels, "phalanx.job": job.name, "phalanx.task": str(start.task)}
        yield (
            start.task,
            {
                "image": container.image,
                "hostname": str(start.task),
                # Takes SIGTERM to the program, and buries what that leaves behind.
                "init": True,
                "stop_grace_period": f"{grace:g}s",
                "command": list(start.command),
                "environment": environment,
                "labels": labels,
                **make_mounts(container.mounts),
            },
        )


def make_tensorboard(job: Job, container: Container) -> dict[str, Any]:
    """A service that shows the job's model directory."""
    key = {"environment": {CREDENTIALS_VARIABLE: CREDENTIALS_PATH}}
    return {
        "image": container.image,
        "command": tensorboard_command(job, container.python),
        **(key if container.credentials else {}),
        "labels": {**container.labels, "phalanx.job": job.name},
        **make_mounts(container.mounts),
    }


def make_volumes(mounts: tuple[Mount, ...]) -> Manifest:
    """What the services' volumes are: under their own names, and NFS by its address."""
    volumes: dict[str, Any] = {}
    for number, mount in enumerate(mounts):
        if mount.kind is MountKind.VOLUME:
            volumes[mount.source] = {"name": mount.source}
        elif mount.kind is MountKind.NFS:
            server, _, path = mount.source.partition(":")
            options = {"type": "nfs", "o": f"addr={server},nfsvers=4", "device": f":{path}"}
            volumes[f"nfs-{number}"] = {"driver_opts": options}
    return {"volumes": volumes} if volumes else {}


def make_mounts(mounts: tuple[Mount, ...]) -> dict[str, Any]:
    """Where a service has them."""
    found = []
    for number, mount in enumerate(mounts):
        is_host = mount.kind is MountKind.HOST
        source = f"nfs-{number}" if mount.kind is MountKind.NFS else mount.source
        found.append(
            {
                "type": "bind" if is_host else "volume",
                "source": source,
                "target": mount.target,
                **({"read_only": True} if mount.read_only else {}),
            }
        )
    return {"volumes": found} if found else {}


def render(file: Mapping[str, Any]) -> str:
    """The file as YAML. In it `$` begins a variable, and `$$` is a `$`."""
    return dump([_literal(file)]) + "\n"


def _literal(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return value
