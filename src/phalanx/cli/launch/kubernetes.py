"""`phalanx launch kubernetes`: Indexed Jobs, and no operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from phalanx.cli.launch.pods import PODS, make_place
from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import make_container, make_job, options
from phalanx.launch.backends.kubernetes.launcher import KubernetesLauncher


@click.command(name="kubernetes", cls=LaunchCommand)
@options(
    *PODS,
    click.option(
        "--conductor-account",
        metavar="NAME",
        help="A service account that may get and patch Jobs  [default: one is made]",
    ),
)
def command(**values: Any) -> None:
    """Start the tasks of a job as pods: an Indexed Job for each role.

    Each role can have its own --cpus, --memory and --gpus. PROGRAM is looked for in the image.
    Needs the extra phalanx[kubernetes] and Kubernetes 1.33 or newer; with --dry-run neither, and
    the output is for kubectl apply -f -.

    \b
    Example:
      phalanx launch kubernetes --image digits:1 --workers 4 --ps 2 --cpus 4 \\
          --gpus chief=1 --gpus worker=1 --model-dir gs://bucket/digits \\
          --credentials key.json train.py
    """
    job = make_job(values)
    place = replace(make_place(values), controller_account=values["conductor_account"])
    launcher = KubernetesLauncher(make_container(values), place, values["context"])
    launch("kubernetes", launcher, job, values)
