"""`phalanx launch docker`: containers on one engine."""

from __future__ import annotations

import uuid
from typing import Any

import click

from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import (
    CONTAINER,
    CPUS,
    DATA_WORKERS,
    GPUS,
    GRACE,
    MEMORY,
    TENSORBOARD,
    make_container,
    make_job,
    options,
)
from phalanx.launch.backends.docker.launcher import DockerLauncher
from phalanx.launch.job_store import JobStore


@click.command(name="docker", cls=LaunchCommand)
@options(
    DATA_WORKERS,
    *CONTAINER,
    CPUS,
    MEMORY,
    GPUS,
    TENSORBOARD,
    GRACE,
)
def command(**values: Any) -> None:
    """Start the tasks of a job as containers on one Docker engine.

    The engine is the one that `docker` itself talks to (DOCKER_HOST, docker context). PROGRAM is
    looked for in the image. A process of this machine looks after the containers.

    \b
    Example:
      phalanx launch docker --image digits:1 --workers 2 --ps 1 --cpus 2 --memory 4G \\
          --mount /home/ann/data:/data:ro train.py --data /data
    """
    job = make_job(values)
    directory = JobStore.of_user().directory / job.name
    launcher = DockerLauncher(
        make_container(values),
        directory,
        uuid.uuid4().hex,
        values["grace"],
        values["tensorboard"],
    )
    launch("docker", launcher, job, values)
