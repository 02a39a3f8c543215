"""`phalanx launch kubernetes`: an Indexed Job, and no operator."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.launch.command import LaunchCommand, launch
from phalanx.cli.launch.options import make_container, make_job, options
from phalanx.cli.launch.pods import PODS, make_place
from phalanx.launch.kubernetes.launcher import KubernetesLauncher


@click.command(name="kubernetes", cls=LaunchCommand)
@options(*PODS)
def command(**values: Any) -> None:
    """Start the tasks of a job as the pods of one Indexed Job.

    PROGRAM is looked for in the image. Needs the extra phalanx[kubernetes] and Kubernetes 1.33 or
    newer; with --dry-run neither, and the output is for kubectl apply -f -.

    \b
    Example:
      phalanx launch kubernetes --image digits:1 --workers 4 --cpus 4 --memory 8G --gpus 1 \\
          --model-dir gs://bucket/digits --credentials key.json --tensorboard train.py
    """
    job = make_job(values)
    launcher = KubernetesLauncher(make_container(values), make_place(values), values["context"])
    launch("kubernetes", launcher, job, values)
