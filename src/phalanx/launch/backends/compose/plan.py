"""From a job to a compose file: a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.launch.backends.compose import follow
from phalanx.launch.containers.compose_file import (
    make_services,
    make_tensorboard,
    make_volumes,
    render,
)
from phalanx.launch.containers.container import Container
from phalanx.launch.generated_file import header
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.patch import COMPOSE_KEYS, merge_patches
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.task_commands import TENSORBOARD_PORT, assign_gpus
from phalanx.launch.termination import GracePeriods

COMMAND = "launch compose"


@dataclass(frozen=True)
class ComposePlan:
    """The file, the containers that it makes, and the processes that look after them."""

    name: str
    image: str
    file: str
    containers: tuple[str, ...]
    processes: ProcessPlan
    tensorboard: bool

    def render(self) -> str:
        """The file."""
        return self.file.rstrip("\n")


def plan_file(
    job: Job,
    container: Container,
    directory: Path,
    run_id: str,
    grace: float,
    python: str,
    tensorboard: bool,
    patches: tuple[Manifest, ...],
) -> ComposePlan:
    """A service for each task of a job."""
    inside = container.with_credentials_mount()
    gpus = assign_gpus(job, dict.fromkeys(job.all_tasks(), "here"))
    services = {
        str(task): {
            "container_name": _name(job, task),
            **service,
            **dict(_amounts(job, task)),
            **(_reserve(gpus[task]) if gpus.get(task) else {}),
        }
        for task, service in make_services(job, inside, grace)
    }
    if tensorboard:
        services["tensorboard"] = {
            "container_name": f"{job.name}-tensorboard",
            **make_tensorboard(job, inside),
            "ports": [f"127.0.0.1:{TENSORBOARD_PORT}:{TENSORBOARD_PORT}"],
        }
    content = {"services": services, **make_volumes(inside.mounts)}
    file = header(COMMAND) + render(merge_patches(content, patches, COMPOSE_KEYS))
    tasks = tuple(
        TaskPlan(
            task,
            (python, "-I", follow.__file__, _name(job, task), f"{grace:.0f}"),
            {RUN_ID_VARIABLE: run_id, TASK_VARIABLE: str(task)},
            directory / f"{task}.log",
            is_relay=True,
        )
        for task in job.all_tasks()
    )
    # The engine keeps the grace, and takes a moment to tell of it.
    processes = ProcessPlan(tasks, run_id, job.restarts, GracePeriods(grace + 15), job.time_limit)
    names = tuple(_name(job, task) for task in job.all_tasks())
    return ComposePlan(job.name, container.image, file, names, processes, tensorboard)


def _name(job: Job, task: Task) -> str:
    return f"{job.name}-{task}"


def _amounts(job: Job, task: Task) -> Iterator[tuple[str, Any]]:
    needs = job.needs(task.role)
    if job.restarts:
        yield "restart", f"on-failure:{job.restarts}"
    if needs.cpus:
        yield "cpus", needs.cpus
    if needs.memory:
        yield "mem_limit", needs.memory


def _reserve(gpus: list[str]) -> dict[str, Any]:
    """By number: a mere count is the first ones for every container."""
    devices = {"driver": "nvidia", "device_ids": gpus, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [devices]}}}}
