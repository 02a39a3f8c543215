"""`phalanx launch swarm`: a stack on several engines."""

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
    PATCH,
    TENSORBOARD,
    make_container,
    make_job,
    options,
    read_patches,
)
from phalanx.cli.values import Parsed
from phalanx.launch.backends.swarm.launcher import SwarmLauncher
from phalanx.launch.backends.swarm.plan import NodeLabel
from phalanx.launch.job_store import JobStore


@click.command(name="swarm", cls=LaunchCommand)
@options(
    DATA_WORKERS,
    *CONTAINER,
    CPUS,
    MEMORY,
    GPUS,
    TENSORBOARD,
    click.option(
        "--node-label",
        "node_labels",
        multiple=True,
        type=Parsed("label", NodeLabel.parse),
        metavar="[ROLE:]NAME=VALUE",
        help="Only nodes with this label, as in worker:gpu=yes. Can be repeated.",
    ),
    PATCH,
    GRACE,
)
def command(**values: Any) -> None:
    """Start the tasks of a job as the services of a stack, on the nodes of a Docker swarm.

    `docker` must talk to a manager (DOCKER_HOST, docker context). PROGRAM is looked for in the
    image, which every node must have or be able to pull. A process of this machine follows the
    services, and removes the stack when the job is over.

    \b
    Example:
      phalanx launch swarm --image registry/digits:1 --workers 4 --ps 1 --cpus 4 \\
          --node-label worker:gpu=yes --restarts 2 train.py
      phalanx launch swarm --image registry/digits:1 --workers 4 --dry-run train.py > stack.yaml
    """
    job = make_job(values)
    launcher = SwarmLauncher(
        make_container(values),
        JobStore.of_user().directory / job.name,
        uuid.uuid4().hex,
        values["node_labels"],
        values["grace"],
        values["tensorboard"],
        read_patches(values),
    )
    launch("swarm", launcher, job, values)
