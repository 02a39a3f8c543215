"""`phalanx launch NAME` for a launcher that another package has added."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.launch.submission import LaunchCommand, launch
from phalanx.cli.options import CPUS, GPUS, MEMORY, make_job, options
from phalanx.launch import registry


def make_command(name: str) -> click.Command:
    """The common options; the launcher is made without arguments."""

    @options(CPUS, MEMORY, GPUS)
    def run(**values: Any) -> None:
        launcher = registry.find_lasting(name)()
        launch(name, launcher, make_job(values), values)

    text = f"Start a job with {name}.\n\n\b\nExample:\n  phalanx launch {name} --workers 2 train.py"
    return click.command(name=name, cls=LaunchCommand, help=text)(run)
