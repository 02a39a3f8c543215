"""`phalanx launch BACKEND`: one file for each backend, imported when it is called."""

from __future__ import annotations

import click

from phalanx.cli import LazyGroup
from phalanx.launch import registry

BACKENDS = {name: f"phalanx.cli.launch.{name}" for name in registry.BUILT_IN if name != "local"}


class Backends(LazyGroup):
    """Our launchers, and those that other packages have added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the alphabet."""
        return sorted([*super().list_commands(ctx), *registry.added()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; an added launcher has the common options alone."""
        if cmd_name not in registry.added():
            return super().get_command(ctx, cmd_name)
        from phalanx.cli.launch.added import make_command  # noqa: PLC0415

        return make_command(cmd_name)


@click.group(cls=Backends, modules=BACKENDS)
def command() -> None:
    """Start a job on the cluster manager you have.

    The job goes on by itself: see `phalanx status`, `phalanx logs` and `phalanx cancel`.

    \b
    Example:
      phalanx launch slurm --workers 4 --ps 2 --cpus 8 train.py --rate 0.1
      phalanx launch ssh --host gpu1 --host gpu2 --workers 1 train.py
    """
