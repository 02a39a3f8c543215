"""The services and volumes of compose files and Swarm stacks."""

from collections.abc import Iterator, Mapping
from typing import cast

from phalanx.cluster import job_secret
from phalanx.cluster.spec import Task
from phalanx.launch.containers.container import PORT, Container, Mount, MountKind
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.task_commands import make_task_commands, task_variables, tensorboard_command


def make_services(job: Job, container: Container, grace: float) -> Iterator[tuple[Task, Manifest]]:
    """Yield a service for each task; the name of the task is its host name."""
    job.validate()
    container.validate()
    addresses = {task: f"{task}:{PORT}" for task in job.listening_tasks()}
    for each in make_task_commands(job, addresses, container.python):
        variables = task_variables(job, each.task.role, each.variables, grace=grace)
        labels = {**container.labels, "phalanx.job": job.name, "phalanx.task": str(each.task)}
        yield (
            each.task,
            {
                "image": container.image,
                "hostname": str(each.task),
                # Forwards SIGTERM to the program, and reaps its orphans.
                "init": True,
                "stop_grace_period": f"{grace:g}s",
                "command": list(each.command),
                "environment": {
                    **variables,
                    **container.credentials_variables(),
                    # Without a value, it is taken from the environment of the docker command.
                    job_secret.VARIABLE: None,
                },
                "labels": labels,
                **make_mounts(container.mounts),
            },
        )


def make_tensorboard(job: Job, container: Container) -> Manifest:
    """Make the service of TensorBoard, from the container of `Container.for_tensorboard`."""
    key = container.credentials_variables()
    return {
        "image": container.image,
        "command": tensorboard_command(job, container.python),
        **({"environment": key} if key else {}),
        "labels": {**container.labels, "phalanx.job": job.name},
        **make_mounts(container.mounts),
    }


def make_volumes(mounts: tuple[Mount, ...]) -> Manifest:
    """Make the `volumes` of a file: named volumes, and NFS by its address."""
    volumes: Manifest = {}
    for index, mount in enumerate(mounts):
        if mount.kind is MountKind.VOLUME:
            volumes[mount.source] = {"name": mount.source}
        elif mount.kind is MountKind.NFS:
            server, _, path = mount.source.partition(":")
            options = {"type": "nfs", "o": f"addr={server},nfsvers=4", "device": f":{path}"}
            volumes[f"nfs-{index}"] = {"driver_opts": options}
    return {"volumes": volumes} if volumes else {}


def make_mounts(mounts: tuple[Mount, ...]) -> Manifest:
    """Make the `volumes` of a service, which are its mounts."""
    found = [
        {
            "type": "bind" if mount.kind is MountKind.HOST else "volume",
            "source": f"nfs-{index}" if mount.kind is MountKind.NFS else mount.source,
            "target": mount.target,
            **({"read_only": True} if mount.read_only else {}),
        }
        for index, mount in enumerate(mounts)
    ]
    return {"volumes": found} if found else {}


def render(file: Manifest) -> str:
    """Render the file as YAML, with `$` escaped as `$$`: compose expands variables."""
    return dump([cast(Manifest, _escape(file))]) + "\n"


def _escape(value: object) -> object:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _escape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_escape(each) for each in value]
    return value
