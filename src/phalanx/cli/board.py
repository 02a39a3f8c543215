"""`phalanx board`: show runs in TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import click

from phalanx.cli.option_factories import port_option
from phalanx.errors import ConfigurationError


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option("--host", default="localhost", show_default=True, help="The address to listen on.")
@port_option(6006)
def command(directory: str, host: str, port: int) -> None:
    """Show the run in DIRECTORY, or all runs below it, in TensorBoard until Ctrl-C.

    \b
    Example:
      phalanx board runs/
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError("TensorBoard is not installed: pip install 'phalanx[cpu]'")
    if next(Path(directory).rglob("*.tfevents.*"), None) is None:
        raise ConfigurationError(f"there are no event files in {directory} or below it")
    # TensorBoard replaces this process: a signal that ends the command ends TensorBoard too.
    arguments = ["--logdir", directory, "--host", host, "--port", str(port)]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments])
