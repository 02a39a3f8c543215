"""`phalanx launch trainjob`: a TrainJob."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.launch.pods import PODS, make_place
from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import make_container, make_job, options
from phalanx.launch.backends.trainjob.launcher import TrainJobLauncher


@click.command(name="trainjob", cls=LaunchCommand)
@options(*PODS)
def command(**values: Any) -> None:
    """Start the tasks of a job as a TrainJob, for Kubeflow Trainer 2.

    It comes with a TrainingRuntime of its own, which sets TF_CONFIG. Each role can have its own
    --cpus, --memory and --gpus. PROGRAM is looked for in the image. Needs the extra
    phalanx[kubernetes]; not with --dry-run, whose output is for kubectl apply -f -.

    \b
    Example:
      phalanx launch trainjob --image digits:1 --workers 4 --ps 2 --cpus 4 \\
          --gpus chief=1 --gpus worker=1 --model-dir gs://bucket/digits \\
          --credentials key.json train.py
    """
    job = make_job(values)
    launcher = TrainJobLauncher(make_container(values), make_place(values), values["context"])
    launch("trainjob", launcher, job, values)
