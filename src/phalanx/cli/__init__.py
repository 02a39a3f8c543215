"""The `phalanx` command. Each command is a file of its own, imported when it is called."""

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

COMMANDS = {
    "board": "phalanx.cli.board",
    "cancel": "phalanx.cli.cancel",
    "check": "phalanx.cli.check",
    "compare": "phalanx.cli.compare",
    "data-service": "phalanx.cli.data_service",
    "dataset": "phalanx.cli.dataset",
    "evaluate": "phalanx.cli.evaluate",
    "export": "phalanx.cli.export",
    "image": "phalanx.cli.image",
    "launch": "phalanx.cli.launch",
    "logs": "phalanx.cli.logs",
    "manifest": "phalanx.cli.manifest",
    "predict": "phalanx.cli.predict",
    "records": "phalanx.cli.records",
    "run": "phalanx.cli.run",
    "runs": "phalanx.cli.runs",
    "serve": "phalanx.cli.serve",
    "status": "phalanx.cli.status",
    "tf-config": "phalanx.cli.tf_config",
}


class LazyGroup(click.Group):
    """Looks up a command's module when it is needed, so that `--help` and errors come at once."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the alphabet."""
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name: the object `command` of its module."""
        if cmd_name not in self._modules:
            return None
        command = import_module(self._modules[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(phalanx.__version__, prog_name="phalanx")
def cli() -> None:
    """One experiment, from a laptop to a cluster.

    \b
    Example:
      phalanx run --workers 2 --ps 1 train.py --learning-rate 0.1
    """


def _mend_streams() -> None:
    """Output that is closed, or cannot show a letter, is no reason to fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as we run
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command; an error of ours is one clear message and its exit code, never a trace."""
    _mend_streams()
    try:
        cli(prog_name="phalanx")
    except PhalanxError as error:
        click.echo(f"phalanx: {error}", err=True)
        sys.exit(error.exit_code)
