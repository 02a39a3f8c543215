"""From a job to what Ray is asked for: a pure function. Addresses are known once there is room."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import dump
from phalanx.launch.task_commands import task_variables
from phalanx.launch.termination import GracePeriods


class Strategy(Enum):
    """How the tasks are dealt out to the nodes, in Ray's words."""

    PACK = "pack"
    SPREAD = "spread"
    STRICT_PACK = "strict-pack"
    STRICT_SPREAD = "strict-spread"


@dataclass(frozen=True)
class RayOptions:
    """Where in the cluster a job goes. `autoscaling`: what is too large today has to wait."""

    directory: str
    python: str = "python"
    strategy: Strategy = Strategy.PACK
    autoscaling: bool = False
    grace_periods: GracePeriods = field(default_factory=GracePeriods)


@dataclass(frozen=True)
class RayPlan:
    """A placement group with a bundle for each task, and what is run in them."""

    job: Job
    place: RayOptions

    def bundle(self, task: Task) -> dict[str, float]:
        """What a task takes of its node. Who asks for nothing gets a processor, as Ray has it."""
        needs = self.job.needs(task.role)
        amounts = {"CPU": needs.cpus or 1, "GPU": needs.gpus, "memory": needs.memory or 0}
        return {name: amount for name, amount in amounts.items() if amount}

    def render(self) -> str:
        """What the job's actor is told, as YAML."""
        job, place = self.job, self.place
        content: dict[str, Any] = {
            "actor": actor_name(job.name),
            "strategy": place.strategy.name,
            "directory": place.directory,
            "command": [*job.program.command(place.python), *job.program.arguments],
            "model_dir": job.model_dir,
            "restarts": job.restarts,
            "time_limit": job.time_limit,
            "grace": place.grace_periods.grace,
            "tasks": {
                str(task): {
                    "bundle": self.bundle(task),
                    "environment": task_variables(job, task.role, {}),
                }
                for task in job.all_tasks()
            },
        }
        return dump([{name: value for name, value in content.items() if value is not None}])


def actor_name(job: str) -> str:
    """Under which name Ray knows the actor that looks after a job."""
    return f"phalanx-{job}"


def plan_actors(job: Job, place: RayOptions) -> RayPlan:
    """An actor for each task."""
    job.validate()
    return RayPlan(job, place)
