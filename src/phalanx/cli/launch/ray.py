"""`phalanx launch ray`: actors in a placement group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import (
    CPUS,
    DATA_WORKERS,
    GPUS,
    GRACE,
    MEMORY,
    NO_TENSORBOARD,
    START_WITHIN,
    make_job,
    options,
)
from phalanx.launch.backends.ray.launcher import RayLauncher
from phalanx.launch.backends.ray.plan import RayOptions, Strategy
from phalanx.launch.termination import GracePeriods


@click.command(name="ray", cls=LaunchCommand)
@options(
    DATA_WORKERS,
    CPUS,
    MEMORY,
    GPUS,
    START_WITHIN,
    NO_TENSORBOARD,
    click.option(
        "--address",
        metavar="ADDRESS",
        help="ray://host:10001, or host:6379  [default: RAY_ADDRESS, or this machine's cluster]",
    ),
    click.option(
        "--directory",
        metavar="DIR",
        help="Where the program is run on every node  [default: the path of this directory]",
    ),
    click.option("--python", default="python", help="Python  [default: the one Ray runs in]"),
    click.option(
        "--strategy",
        type=click.Choice([each.value for each in Strategy]),
        default=Strategy.PACK.value,
        show_default=True,
        help="How the tasks are dealt out to the nodes.",
    ),
    click.option(
        "--autoscaling", is_flag=True, help="Wait for nodes if the job is too large for those."
    ),
    GRACE,
)
def command(**values: Any) -> None:
    """Start the tasks of a job as actors in one placement group of a Ray cluster.

    Each actor runs PROGRAM as a process of its node, in a directory that all nodes have. A task
    without --cpus takes one. Needs the extra phalanx[ray]; the nodes need Ray, and what
    PROGRAM imports.

    \b
    Example:
      phalanx launch ray --workers 4 --ps 2 --cpus 4 --gpus chief=1 --gpus worker=1 \\
          --strategy spread --directory /shared/digits train.py --rate 0.1
    """
    place = RayOptions(
        directory=values["directory"] or str(Path.cwd()),
        python=values["python"],
        strategy=Strategy(values["strategy"]),
        autoscaling=values["autoscaling"],
        grace_periods=GracePeriods(grace=values["grace"]),
    )
    launch("ray", RayLauncher(place, values["address"]), make_job(values), values)
