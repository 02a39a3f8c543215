"""The Docker launcher: every task is a container on one engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.launch.backends.docker.plan import DockerPlan, plan_containers
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.engine import ask, check_ready
from phalanx.launch.job import Job
from phalanx.launch.processes.background import BackgroundHandle, BackgroundLauncher
from phalanx.launch.processes.guardian import run_cleanup
from phalanx.launch.termination import GracePeriods


@dataclass(frozen=True)
class DockerLauncher(BackgroundLauncher):
    """Starts the tasks of a job as containers of the engine that `docker` talks to.

    A process of this machine looks after the containers, and goes on after `submit`.
    """

    container: Container
    directory: Path
    run_id: str
    grace: float = GracePeriods.grace
    tensorboard: bool = False

    def plan(self, job: Job) -> DockerPlan:
        """The network and the `docker run` of each task."""
        return plan_containers(
            job, self.container, self.directory, self.run_id, self.grace, self.tensorboard
        )

    def submit(self, plan: DockerPlan) -> BackgroundHandle:
        """Start the job, if there are an engine and the image, and the name is free."""
        check_ready(plan.name, plan.image)
        ask(*plan.network[1:])
        try:
            if plan.tensorboard:
                ask(*plan.tensorboard[1:])
            return BackgroundHandle.submit(plan.processes, self.directory)
        except BaseException:
            run_cleanup(plan.processes.cleanup)
            raise
