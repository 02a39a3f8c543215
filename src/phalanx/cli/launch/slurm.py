"""`phalanx launch slurm`: a batch job."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import (
    CPUS,
    DATA_WORKERS,
    GPUS,
    MEMORY,
    NO_TENSORBOARD,
    PATIENCE,
    START_WITHIN,
    check_file,
    make_job,
    options,
)
from phalanx.cli.values import Parsed, parse_duration
from phalanx.launch.backends.slurm.launcher import SlurmLauncher
from phalanx.launch.backends.slurm.plan import SlurmOptions
from phalanx.launch.termination import GracePeriods


@click.command(name="slurm", cls=LaunchCommand)
@options(
    DATA_WORKERS,
    CPUS,
    MEMORY,
    GPUS,
    START_WITHIN,
    NO_TENSORBOARD,
    click.option("--partition", help="As with sbatch."),
    click.option("--account", help="As with sbatch."),
    click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="As with sbatch."),
    click.option(
        "--requeue", is_flag=True, help="Start again after preemption, or when time was up."
    ),
    click.option(
        "--notice",
        type=Parsed("duration", partial(parse_duration, most=65535)),
        default="60s",
        show_default=True,
        metavar="TIME",
        help="Send SIGTERM this long before the time limit.",
    ),
    *PATIENCE,
    click.option(
        "--sbatch-option",
        "sbatch_options",
        multiple=True,
        metavar="OPTION",
        help="Any other, as in --sbatch-option=--qos=high. Can be repeated.",
    ),
    click.option(
        "--log-dir",
        metavar="DIR",
        help="Where each task's output goes  [default: phalanx-logs/NAME]",
    ),
    click.option(
        "--python", default=sys.executable, metavar="PATH", help="Python  [default: this one]"
    ),
)
def command(**values: Any) -> None:
    """Submit a batch job with a step for each role.

    This directory must be on a file system that the nodes share. Roles that need different
    amounts make a heterogeneous job. In an allocation you already have, run the script there:
    phalanx launch slurm --dry-run … | bash

    \b
    Example:
      phalanx launch slurm --workers 4 --ps 2 --cpus 8 --memory 16G --gpus chief=1 \\
          --gpus worker=1 --partition gpu --time-limit 12h --requeue train.py --rate 0.1
    """
    job = make_job(values)
    check_file(job)
    place = SlurmOptions(
        directory=str(Path.cwd()),
        log_dir=str(Path(values["log_dir"] or f"phalanx-logs/{job.name}").absolute()),
        python=values["python"],
        partition=values["partition"],
        account=values["account"],
        nodes=values["nodes"],
        requeue=values["requeue"],
        notice=math.ceil(values["notice"]),
        grace_periods=GracePeriods(values["grace"], values["linger"], values["evaluator_linger"]),
        options=values["sbatch_options"],
    )
    launch("slurm", SlurmLauncher(place), job, values)
