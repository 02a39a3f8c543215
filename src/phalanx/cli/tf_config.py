"""`phalanx tf-config`: make TF_CONFIG, and check it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

import click

from phalanx.cluster.lint import Problem, lint
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import VARIABLE, Environment, TFConfig
from phalanx.errors import ClusterError


@click.group()
def command() -> None:
    """Make TF_CONFIG for a task, or check one.

    \b
    Example:
      export TF_CONFIG=$(phalanx tf-config make worker 0 --worker a:2222 --worker b:2222)
      phalanx tf-config lint
    """


@command.command()
@click.argument("role", type=click.Choice(["chief", "master", "worker", "ps", "evaluator"]))
@click.argument("index", type=click.IntRange(min=0), default=0)
@click.option(
    "--chief", "--master", "chiefs", multiple=True, metavar="HOST:PORT", help="The chief's address."
)
@click.option("--worker", "workers", multiple=True, metavar="HOST:PORT", help="A worker's address.")
@click.option("--ps", multiple=True, metavar="HOST:PORT", help="A parameter server's address.")
@click.option("--model-dir", metavar="DIR", help="Where checkpoints and summaries go.")
@click.option("--environment", type=click.Choice(["local", "cloud"]), default="local")
@click.option(
    "--trial", type=click.IntRange(min=0), default=0, help="The number of a tuning trial."
)
def make(
    role: str,
    index: int,
    chiefs: tuple[str, ...],
    workers: tuple[str, ...],
    ps: tuple[str, ...],
    model_dir: str | None,
    environment: Environment,
    trial: int,
) -> None:
    """Print the TF_CONFIG of the task INDEX of ROLE; INDEX is 0 by default.

    Repeat --worker and --ps for each address, in the same order for every task. An evaluator needs
    no address.

    \b
    Example:
      export TF_CONFIG=$(phalanx tf-config make worker 0 --master localhost:2220 \\
          --ps localhost:2222 --ps localhost:2221 \\
          --worker localhost:2223 --worker localhost:2224)
    """
    if not (chiefs or workers or ps):
        raise ClusterError(
            "no address was given: add the addresses of the tasks, as in --worker a:2222"
        )
    if len(chiefs) > 1:
        raise ClusterError(f"{len(chiefs)} chiefs were given ({', '.join(chiefs)}): keep one")
    cluster = Cluster.of(chief=chiefs[0] if chiefs else None, workers=workers, ps=ps)
    text = TFConfig(cluster, Task(Role.parse(role), index), trial, model_dir, environment).dumps()
    problems = lint(text)
    if problems:
        raise ClusterError("the cluster is invalid:" + _list_problems(problems))
    click.echo(text)


@command.command(name="lint")
@click.argument("config", required=False)
def lint_command(config: str | None) -> None:
    """List every problem of a TF_CONFIG, with its fix.

    CONFIG is the JSON itself, a file that contains it, or - for standard input; by default it is
    the variable TF_CONFIG. The exit code is 0 without problems, 1 with problems, 2 on wrong use.

    \b
    Example:
      phalanx tf-config lint '{"cluster": {"worker": ["a"]}, "task": {"type": "worker"}}'
    """
    text, source = _read_config(config, sys.stdin.buffer)
    problems = lint(text)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        click.echo(f"{count} in {source}:{_list_problems(problems)}")
        sys.exit(1)
    click.echo(f"no problems in {source}")


def _read_config(config: str | None, stdin: BinaryIO) -> tuple[str, str]:
    """Return the text to check, and its name in messages."""
    if config is None:
        text = os.environ.get(VARIABLE)
        if text is None:
            raise ClusterError(
                f"there is nothing to check: {VARIABLE} is not set; pass the JSON, a file, or -"
            )
        return text, VARIABLE
    if config.lstrip()[:1] in ("", "{", "[", '"'):
        return config, "the argument"
    name = "standard input" if config == "-" else config
    try:
        data = stdin.read() if config == "-" else Path(config).read_bytes()
        return data.decode(), name
    except OSError as error:
        if set(config) & set('{}[]" '):
            return config, "the argument"
        raise ClusterError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ClusterError(f"{name} is not text") from None


def _list_problems(problems: list[Problem]) -> str:
    return "".join(f"\n  - {problem}" for problem in problems)
