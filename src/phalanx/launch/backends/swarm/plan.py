"""From a job to a stack: a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.launch.backends.swarm import follow
from phalanx.launch.containers.compose_file import (
    make_services,
    make_tensorboard,
    make_volumes,
    render,
)
from phalanx.launch.containers.container import CREDENTIALS_PATH, Container
from phalanx.launch.job import Job, Resources
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.patch import COMPOSE_KEYS, merge_patches
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.task_commands import TENSORBOARD_PORT
from phalanx.launch.termination import GracePeriods

_SECRET = "credentials"
_RESTART_DELAY = "1s"


@dataclass(frozen=True)
class NodeLabel:
    """Only nodes with this label, for one role or for all."""

    role: Role | None
    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> NodeLabel:
        """`NAME=VALUE`, or `ROLE:NAME=VALUE`.

        >>> NodeLabel.parse("worker:gpu=yes")
        NodeLabel(role=<Role.WORKER: 'worker'>, name='gpu', value='yes')
        """
        label, equals, value = text.partition("=")
        role, colon, name = label.rpartition(":")
        if not name or not equals or not value:
            raise JobError(
                f"{text!r} is not a node's label: write NAME=VALUE, or ROLE:NAME=VALUE for one role"
            )
        return cls(Role.parse_any(role) if colon else None, name, value)


@dataclass(frozen=True)
class SwarmPlan:
    """The stack, and the processes that follow its services."""

    name: str
    image: str
    stack: str
    processes: ProcessPlan

    def render(self) -> str:
        """The stack, for `docker stack deploy --compose-file`."""
        return self.stack.rstrip("\n")


def plan_stack(
    job: Job,
    container: Container,
    node_labels: tuple[NodeLabel, ...],
    directory: Path,
    run_id: str,
    grace: float,
    python: str,
    tensorboard: bool,
    patches: tuple[Manifest, ...],
) -> SwarmPlan:
    """A service for each task of a job, in an overlay network of its own."""
    source = [{"source": _SECRET, "target": CREDENTIALS_PATH}]
    key = {"secrets": source} if container.credentials else {}
    services = {
        str(task): {
            **service,
            **key,
            "deploy": dict(_deploy(job, task, node_labels)),
        }
        for task, service in make_services(job, container, grace)
    }
    if tensorboard:
        # Every node of the swarm listens, and passes it on.
        ports = {"ports": [f"{TENSORBOARD_PORT}:{TENSORBOARD_PORT}"]}
        services["tensorboard"] = {**make_tensorboard(job, container), **key, **ports}
    file: dict[str, Any] = {
        "version": "3.8",
        "services": services,
        "networks": {"default": {"driver": "overlay"}},
        **make_volumes(container.mounts),
    }
    if container.credentials:
        file["secrets"] = {_SECRET: {"file": container.credentials}}
    tasks = tuple(
        TaskPlan(
            task,
            (python, "-I", follow.__file__, f"{job.name}_{task}", str(directory / f"{task}.seen")),
            {RUN_ID_VARIABLE: run_id, TASK_VARIABLE: str(task)},
            directory / f"{task}.log",
            is_relay=True,
        )
        for task in job.all_tasks()
    )
    processes = ProcessPlan(
        tasks,
        run_id,
        job.restarts,
        # The engines keep the grace, and take a moment to tell of it.
        GracePeriods(grace + 15),
        job.time_limit,
        cleanup=(("docker", "stack", "rm", job.name),),
    )
    stack = render(merge_patches(file, patches, COMPOSE_KEYS))
    return SwarmPlan(job.name, container.image, stack, processes)


def _deploy(job: Job, task: Task, node_labels: tuple[NodeLabel, ...]) -> Iterator[tuple[str, Any]]:
    # The address of a task is that of its container: connections last as long as the job does.
    yield "endpoint_mode", "dnsrr"
    if job.restarts:
        attempts = {"max_attempts": job.restarts, "delay": _RESTART_DELAY}
        yield "restart_policy", {"condition": "on-failure", **attempts}
    else:
        yield "restart_policy", {"condition": "none"}
    mine = [each for each in node_labels if each.role in (None, task.role)]
    if mine:
        wanted = [f"node.labels.{each.name} == {each.value}" for each in mine]
        yield "placement", {"constraints": wanted}
    amounts = _amounts(job.needs(task.role))
    if amounts:
        yield "resources", amounts


def _amounts(needs: Resources) -> dict[str, Any]:
    """What a task may use is kept for it, too."""
    limits: dict[str, Any] = {}
    if needs.cpus:
        limits["cpus"] = f"{needs.cpus:g}"
    if needs.memory:
        limits["memory"] = str(needs.memory)
    kept = dict(limits)
    if needs.gpus:
        gpus = {"kind": "NVIDIA-GPU", "value": needs.gpus}
        kept["generic_resources"] = [{"discrete_resource_spec": gpus}]
    both = {"limits": limits, "reservations": kept}
    return {name: value for name, value in both.items() if value}
