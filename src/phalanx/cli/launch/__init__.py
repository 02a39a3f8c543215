"""`phalanx launch BACKEND`: every launcher of the registry as a command."""

import click

from phalanx.cli.command_group import CommandGroup
from phalanx.cli.launch.command import make_command
from phalanx.launch import registry


class BackendGroup(CommandGroup):
    """Builds the command of a backend when it is needed, from the options of its launcher."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in registry.names() if name != "local"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return make_command(cmd_name) if cmd_name in self.list_commands(ctx) else None


@click.group(cls=BackendGroup)
def command() -> None:
    """Start a job on a cluster.

    The job runs in the background: see `phalanx status`, `phalanx logs` and `phalanx cancel`.

    \b
    Example:
      phalanx launch slurm --workers 4 --ps 2 --cpus 8 train.py --rate 0.1
      phalanx launch ssh --host gpu1 --host gpu2 --workers 1 train.py
    """
