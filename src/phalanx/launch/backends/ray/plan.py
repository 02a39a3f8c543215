"""Plans the placement group of a job. Addresses are known only once Ray has placed the tasks."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import dump
from phalanx.launch.task_commands import task_variables
from phalanx.launch.termination import GracePeriods

# Actor handles, object references and placement groups, for which Ray has no usable types.
RayObject = Any


class PlacementStrategy(Enum):
    PACK = "pack"
    SPREAD = "spread"
    STRICT_PACK = "strict-pack"
    STRICT_SPREAD = "strict-spread"


@dataclass(frozen=True)
class RayOptions:
    """How Ray runs a job. With `autoscaling`, a job that is too large waits for new nodes."""

    directory: str
    python: str = "python"
    strategy: PlacementStrategy = PlacementStrategy.PACK
    autoscaling: bool = False
    grace_periods: GracePeriods = field(default_factory=GracePeriods)


@dataclass(frozen=True)
class RayPlan:
    """A placement group with a bundle for each task, and the program that runs in them."""

    job: Job
    options: RayOptions

    def bundle(self, task: Task) -> dict[str, float]:
        """Return the resources of a task: one processor by default, as Ray has it."""
        needs = self.job.needs(task.role)
        amounts = {"CPU": needs.cpus or 1, "GPU": needs.gpus, "memory": needs.memory or 0}
        return {name: amount for name, amount in amounts.items() if amount}

    def render(self) -> str:
        job, options = self.job, self.options
        content = {
            "actor": actor_name(job.name),
            "strategy": options.strategy.name,
            "directory": options.directory,
            "command": [*job.program.command(options.python), *job.program.arguments],
            "model_dir": job.model_dir,
            "secrets": dict(job.secrets) or None,
            "restarts": job.restarts,
            "time_limit": job.time_limit,
            "grace": options.grace_periods.grace,
            "tasks": {
                str(task): {
                    "bundle": self.bundle(task),
                    "environment": task_variables(
                        job, task.role, {}, grace=options.grace_periods.grace
                    ),
                }
                for task in job.all_tasks()
            },
        }
        return dump([{name: value for name, value in content.items() if value is not None}])


def actor_name(job: str) -> str:
    return f"phalanx-{job}"
