"""`phalanx board`: TensorBoard on a run, or on all runs under a directory."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import click

from phalanx.errors import ConfigurationError


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option("--host", default="localhost", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=6006,
    show_default=True,
    help="0 takes any free port.",
)
def command(directory: str, host: str, port: int) -> None:
    """Open TensorBoard on the run in DIRECTORY, or on all runs under it, until Ctrl-C.

    \b
    Example:
      phalanx board runs/
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError("TensorBoard is not installed: pip install 'phalanx[cpu]'")
    if next(Path(directory).rglob("*.tfevents.*"), None) is None:
        raise ConfigurationError(f"there are no event files in {directory} or under it")
    # TensorBoard takes this process's place, so that nothing is left when it ends.
    arguments = ["--logdir", directory, "--host", host, "--port", str(port)]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments])
