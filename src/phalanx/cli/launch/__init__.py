"""`phalanx launch BACKEND`: one file for each backend, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from phalanx.launch import registry

BACKENDS = {
    "compose": "phalanx.cli.launch.compose",
    "docker": "phalanx.cli.launch.docker",
    "kubeflow": "phalanx.cli.launch.kubeflow",
    "kubernetes": "phalanx.cli.launch.kubernetes",
    "marathon": "phalanx.cli.launch.marathon",
    "ray": "phalanx.cli.launch.ray",
    "slurm": "phalanx.cli.launch.slurm",
    "ssh": "phalanx.cli.launch.ssh",
    "swarm": "phalanx.cli.launch.swarm",
    "trainjob": "phalanx.cli.launch.trainjob",
}


class Backends(click.Group):
    """Looks up a backend's module when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the alphabet."""
        return sorted({*BACKENDS, *registry.added()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name: the object `command` of its module."""
        if cmd_name in BACKENDS:
            command = import_module(BACKENDS[cmd_name]).command
        elif cmd_name in registry.added():
            command = import_module("phalanx.cli.launch.added").make_command(cmd_name)
        else:
            return None
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Backends)
def command() -> None:
    """Start a job on the cluster manager you have.

    The job goes on by itself: see `phalanx status`, `phalanx logs` and `phalanx cancel`.

    \b
    Example:
      phalanx launch slurm --workers 4 --ps 2 --cpus 8 train.py --rate 0.1
      phalanx launch ssh --host gpu1 --host gpu2 --workers 1 train.py
    """
