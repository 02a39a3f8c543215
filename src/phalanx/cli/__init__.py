"""The `phalanx` command line. Each command is a module, which is imported when it is called."""

import io
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import phalanx
from phalanx.errors import PhalanxError

# The commands of each module. A module with a single one calls it `command`.
_MODULES = {
    "cluster": ("check", "tf-config"),
    "jobs": ("cancel", "logs", "status"),
    "models": ("evaluate", "export", "predict", "serve"),
    "runs": ("board", "compare", "runs"),
}
_ALONE = (
    "data-service",
    "dataset",
    "guard",
    "image",
    "launch",
    "manifest",
    "records",
    "run",
    "tf1",
)
COMMANDS = {name: f"phalanx.cli.{name}".replace("-", "_") for name in _ALONE} | {
    name: f"phalanx.cli.{module}:{name}".replace("-", "_")
    for module, names in _MODULES.items()
    for name in names
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, which keeps `--help` fast."""

    def __init__(
        self, name: str | None = None, *, modules: Mapping[str, str], **attributes: Any
    ) -> None:
        super().__init__(name, **attributes)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module, _, name = self._modules[cmd_name].partition(":")
        command = getattr(import_module(module), name or "command")
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(phalanx.__version__, prog_name="phalanx")
def cli() -> None:
    """Train one Keras experiment on a laptop or on a cluster.

    \b
    Example:
      phalanx run --workers 2 --ps 1 train.py --learning-rate 0.1
    """


def _repair_streams() -> None:
    """Replace a closed stdout or stderr, and write "?" for characters that it cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the exit
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run a command; print an error of Phalanx as one message, and exit with its exit code."""
    _repair_streams()
    try:
        cli(prog_name="phalanx")
    except PhalanxError as error:
        click.echo(f"phalanx: {error}", err=True)
        sys.exit(error.exit_code)
