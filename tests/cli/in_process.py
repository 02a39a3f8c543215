"""The command in this process: loading TensorFlow once is enough."""

from __future__ import annotations

from dataclasses import dataclass

from click.testing import CliRunner

from phalanx.cli import cli
from phalanx.errors import PhalanxError


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def invoke(*arguments: object) -> Done:
    """Run `phalanx` with these arguments; an error of ours becomes its message and exit code."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    error = result.exception
    if isinstance(error, PhalanxError):
        return Done(error.exit_code, result.stdout, f"{result.stderr}phalanx: {error}\n")
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return Done(result.exit_code, result.stdout, result.stderr)
