"""Run a command in this process, which loads TensorFlow only once."""

from __future__ import annotations

from dataclasses import dataclass

from click.testing import CliRunner

from phalanx.cli import cli
from phalanx.errors import PhalanxError


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


def invoke(*arguments: object) -> Result:
    """Run `phalanx` with these arguments; a PhalanxError becomes its message and exit code."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    error = result.exception
    if isinstance(error, PhalanxError):
        return Result(error.exit_code, result.stdout, f"{result.stderr}phalanx: {error}\n")
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return Result(result.exit_code, result.stdout, result.stderr)
