"""The `phalanx` command line. Each command is a module, which is imported when it is called."""

from __future__ import annotations

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

COMMANDS = (
    "board",
    "cancel",
    "check",
    "compare",
    "data-service",
    "dataset",
    "evaluate",
    "export",
    "image",
    "launch",
    "logs",
    "manifest",
    "predict",
    "records",
    "run",
    "runs",
    "serve",
    "status",
    "tf-config",
)


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
        """Return the object `command` of the command's module."""
        if cmd_name not in self._modules:
            return None
        command = import_module(self._modules[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    modules={name: f"phalanx.cli.{name.replace('-', '_')}" for name in COMMANDS},
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
