"""`phalanx launch kubeflow`: a TFJob."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.launch.pods import PODS, make_place
from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import make_container, make_job, options
from phalanx.launch.backends.kubeflow.launcher import KubeflowLauncher


@click.command(name="kubeflow", cls=LaunchCommand)
@options(*PODS)
def command(**values: Any) -> None:
    """Start the tasks of a job as the replicas of a TFJob, for Kubeflow's training operator.

    Each role can have its own --cpus, --memory and --gpus. PROGRAM is looked for in the image.
    Needs the extra phalanx[kubernetes]; not with --dry-run, whose output is for kubectl apply -f -.

    \b
    Example:
      phalanx launch kubeflow --image digits:1 --workers 4 --ps 2 --cpus 4 \\
          --gpus chief=1 --gpus worker=1 --model-dir gs://bucket/digits \\
          --credentials key.json train.py
    """
    job = make_job(values)
    launcher = KubeflowLauncher(make_container(values), make_place(values), values["context"])
    launch("kubeflow", launcher, job, values)
