"""What the launchers of Docker, Compose and Swarm share."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import CONTAINER, PATCH, make_container, read_patches
from phalanx.launch.job import Job
from phalanx.launch.job_store import JobStore
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.options import GRACE, LOCAL_TENSORBOARD, Option, OptionValues
from phalanx.launch.processes.background import BackgroundLauncher
from phalanx.launch.rules import Patience


@dataclass(frozen=True)
class ContainerLauncher(BackgroundLauncher):
    """Runs each task in a container, which a background process on this machine supervises."""

    container: Container
    directory: Path
    run_id: str
    grace: float = Patience.grace
    tensorboard: bool = False
    patches: tuple[Manifest, ...] = ()

    launch_options: ClassVar[tuple[Option, ...]] = (*CONTAINER, LOCAL_TENSORBOARD, PATCH, GRACE)

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
