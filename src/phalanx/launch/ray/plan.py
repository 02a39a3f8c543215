"""From a job to what Ray is asked for: a pure function. Addresses are known once there is room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.launch.environment import DEFAULTS, thread_variables
from phalanx.launch.job import Job, Resources
from phalanx.launch.manifest import dump
from phalanx.launch.placeholders import check_placeholders
from phalanx.launch.rules import Patience


class Strategy(Enum):
    """How the tasks are dealt out to the nodes, in Ray's words."""

    PACK = "pack"
    SPREAD = "spread"
    STRICT_PACK = "strict-pack"
    STRICT_SPREAD = "strict-spread"


@dataclass(frozen=True)
class Place:
    """Where in the cluster a job goes. `autoscaling`: what is too large today has to wait."""

    directory: str
    python: str = "python"
    strategy: Strategy = Strategy.PACK
    autoscaling: bool = False
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class TaskPlan:
    """One actor: what it takes of its node, and what it runs. Arguments may have placeholders."""

    task: Task
    bundle: Mapping[str, float]
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class RayPlan:
    """A placement group with a bundle for each task, and what is run in them."""

    name: str
    tasks: tuple[TaskPlan, ...]
    place: Place
    model_dir: str | None
    restarts: int
    time_limit: float | None

    def render(self) -> str:
        """What the job's actor is told, as YAML."""
        place = self.place
        content: dict[str, Any] = {
            "actor": actor_name(self.name),
            "strategy": place.strategy.name,
            "directory": place.directory,
            "model_dir": self.model_dir,
            "restarts": self.restarts,
            "time_limit": self.time_limit,
            "grace": place.patience.grace,
            "tasks": {
                str(each.task): {
                    "bundle": dict(each.bundle),
                    "command": list(each.command),
                    "environment": dict(each.environment),
                }
                for each in self.tasks
            },
        }
        return dump([{name: value for name, value in content.items() if value is not None}])


def actor_name(job: str) -> str:
    """Under which name Ray knows the actor that looks after a job."""
    return f"phalanx-{job}"


def plan_actors(job: Job, place: Place) -> RayPlan:
    """An actor for each task."""
    job.validate()
    check_placeholders(job.program.arguments)
    command = (*job.program.start(place.python), *job.program.arguments)
    tasks = tuple(
        TaskPlan(task, _bundle(job.needs(task.role)), command, _environment(job, task))
        for task in job.tasks()
    )
    return RayPlan(job.name, tasks, place, job.model_dir, job.restarts, job.time_limit)


def _bundle(needs: Resources) -> dict[str, float]:
    """A bundle must not be empty: who asks for nothing gets the one processor that Ray gives."""
    amounts = {"CPU": needs.cpus or 1, "GPU": needs.gpus, "memory": needs.memory or 0}
    return {name: amount for name, amount in amounts.items() if amount}


def _environment(job: Job, task: Task) -> dict[str, str]:
    cpus = job.needs(task.role).cpus
    threads = thread_variables(max(1, int(cpus))) if cpus else {}
    return {**DEFAULTS, **threads, **job.environment}
