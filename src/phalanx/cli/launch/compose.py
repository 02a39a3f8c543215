"""`phalanx launch compose`: a compose file, and its containers."""

from __future__ import annotations

import uuid
from pathlib import Path
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
    PATCH,
    TENSORBOARD,
    make_container,
    make_job,
    options,
    read_patches,
)
from phalanx.launch.backends.compose.launcher import ComposeLauncher
from phalanx.launch.job_store import JobStore


@click.command(name="compose", cls=LaunchCommand)
@options(
    DATA_WORKERS,
    *CONTAINER,
    CPUS,
    MEMORY,
    GPUS,
    TENSORBOARD,
    click.option(
        "--output",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="The compose file  [default: NAME.compose.yaml]",
    ),
    PATCH,
    GRACE,
)
def command(**values: Any) -> None:
    """Write a compose file with a service for each task, and start them on one Docker engine.

    The file stays, for you to keep. PROGRAM is looked for in the image. A process of this machine
    looks after the containers: it ends parameter servers, and removes everything in the end.

    \b
    Example:
      phalanx launch compose --image digits:1 --workers 2 --ps 1 --cpus 2 train.py
      phalanx launch compose --image digits:1 --workers 2 --dry-run train.py > compose.yaml
    """
    job = make_job(values)
    launcher = ComposeLauncher(
        make_container(values),
        Path(values["output"] or f"{job.name}.compose.yaml"),
        JobStore.of_user().directory / job.name,
        uuid.uuid4().hex,
        values["grace"],
        values["tensorboard"],
        read_patches(values),
    )
    launch("compose", launcher, job, values)
