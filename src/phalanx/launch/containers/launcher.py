"""What the launchers of Docker, Compose and Swarm share."""

import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from phalanx.cluster.spec import Task
from phalanx.launch.containers import follow
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import (
    CONTAINER,
    PATCH,
    RUN_AS_USER,
    TENSORBOARD_CREDENTIALS,
    make_container,
    read_patches,
)
from phalanx.launch.job import Job
from phalanx.launch.job_store import JobStore
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.options import GRACE, LOCAL_TENSORBOARD, Option, OptionValues
from phalanx.launch.processes.background import BackgroundLauncher
from phalanx.launch.processes.plan import ProcessPlan, plan_followers
from phalanx.launch.termination import GracePeriods

# An engine enforces the grace period; its response takes a moment longer.
_STOP_SECONDS = 15.0


@dataclass(frozen=True)
class ContainerLauncher(BackgroundLauncher):
    """Runs each task in a container, which a background process on this machine supervises."""

    container: Container
    directory: Path
    run_id: str
    grace: float = GracePeriods.grace
    tensorboard: bool = False
    patches: tuple[Manifest, ...] = ()

    launch_options: ClassVar[tuple[Option, ...]] = (
        *CONTAINER,
        RUN_AS_USER,
        LOCAL_TENSORBOARD,
        TENSORBOARD_CREDENTIALS,
        PATCH,
        GRACE,
    )

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        return cls(
            container=make_container(values),
            directory=JobStore.of_user().directory / job.name,
            run_id=uuid.uuid4().hex,
            grace=values["grace"],
            tensorboard=values["tensorboard"],
            patches=read_patches(values),
        )

    def plan_followers(
        self,
        job: Job,
        arguments: Callable[[Task], tuple[str, str, str]],
        cleanup: tuple[tuple[str, ...], ...] = (),
    ) -> ProcessPlan:
        """Plan a process for each task that runs follow.py with the arguments of the task."""
        return plan_followers(
            job.all_tasks(),
            lambda task: (sys.executable, "-I", follow.__file__, *arguments(task)),
            self.directory,
            self.run_id,
            restarts=job.restarts,
            grace=self.grace + _STOP_SECONDS,
            time_limit=job.time_limit,
            cleanup=cleanup,
        )
