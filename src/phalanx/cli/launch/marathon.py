"""`phalanx launch marathon`: a group with an app for each task."""

from __future__ import annotations

import os
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
    make_container,
    make_job,
    options,
    read_patches,
)
from phalanx.cli.values import Parsed
from phalanx.launch.backends.marathon.launcher import MarathonLauncher
from phalanx.launch.backends.marathon.plan import HOST_NAME, MarathonOptions
from phalanx.launch.job_store import JobStore
from phalanx.launch.termination import GracePeriods

_OPERATORS = ("UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER", "IS")


def parse_constraint(text: str) -> tuple[str, ...]:
    """`FIELD:OPERATOR` or `FIELD:OPERATOR:VALUE`."""
    parts = tuple(text.split(":", 2))
    if len(parts) < 2 or not parts[0] or parts[1] not in _OPERATORS:
        raise ValueError(f"{text!r} is not a constraint: write rack:LIKE:gpu or rack:CLUSTER:a")
    return parts


@click.command(name="marathon", cls=LaunchCommand)
@options(
    DATA_WORKERS,
    *CONTAINER,
    CPUS,
    MEMORY,
    GPUS,
    click.option("--url", metavar="URL", help="Of Marathon  [default: MARATHON_URL]"),
    click.option(
        "--host-name",
        default=HOST_NAME,
        show_default=True,
        metavar="NAME",
        help="Where the others find a task's host.",
    ),
    click.option(
        "--port",
        type=click.IntRange(1, 65000),
        default=MarathonOptions.port,
        show_default=True,
        help="Of the first task; the others follow.",
    ),
    click.option(
        "--agent-port",
        type=click.IntRange(1, 65535),
        default=5051,
        show_default=True,
        help="Where Mesos' agents give the tasks' output.",
    ),
    click.option(
        "--constraint",
        "constraints",
        multiple=True,
        type=Parsed("constraint", parse_constraint),
        metavar="FIELD:OPERATOR[:VALUE]",
        help="As in rack:CLUSTER:a. Can be repeated.",
    ),
    click.option("--tensorboard", is_flag=True, help="Serve TensorBoard while the job runs."),
    PATCH,
    GRACE,
)
def command(**values: Any) -> None:
    """Start the tasks of a job as the apps of a Marathon group.

    PROGRAM is looked for in the image. MARATHON_TOKEN, or MARATHON_USER and MARATHON_PASSWORD, say
    who you are. A process of this machine follows the job and removes the group at its end.

    \b
    Example:
      phalanx launch marathon --url http://marathon.mesos:8080 --image digits:1 \\
          --workers 2 --ps 1 --cpus 2 --memory 4G --constraint rack:LIKE:gpu train.py
    """
    job = make_job(values)
    url = values["url"] or os.environ.get("MARATHON_URL", "")
    place = MarathonOptions(
        values["host_name"],
        values["port"],
        values["constraints"],
        values["tensorboard"],
        GracePeriods(grace=values["grace"]),
        read_patches(values),
    )
    directory = JobStore.of_user().directory / job.name
    container = make_container(values)
    run_id = uuid.uuid4().hex
    launcher = MarathonLauncher(
        url.rstrip("/"), container, place, directory, run_id, values["agent_port"]
    )
    launch("marathon", launcher, job, values)
