"""`phalanx tf-config` and `phalanx check`: make TF_CONFIG, lint it, and reach its tasks."""

import os
import sys
from pathlib import Path
from typing import BinaryIO

import click

from phalanx.cli.command_group import CommandGroup
from phalanx.cli.option_factories import time_option
from phalanx.cli.options import POSITIVE_DURATION
from phalanx.cli.printing import echo
from phalanx.cluster import detect
from phalanx.cluster.lint import Problem, lint
from phalanx.cluster.preflight import check_peers
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import VARIABLE, Environment, TFConfig
from phalanx.errors import ClusterError


@click.group(cls=CommandGroup)
def tf_config() -> None:
    """Make TF_CONFIG for a task, or check one.

    \b
    Example:
      export TF_CONFIG=$(phalanx tf-config make worker 0 --worker a:2222 --worker b:2222)
      phalanx tf-config lint
    """


@tf_config.command()
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
    no address. Start the tasks with `phalanx guard`, and with the same PHALANX_SECRET_FILE on all
    hosts: otherwise everybody can connect to them.

    \b
    Example:
      export TF_CONFIG=$(phalanx tf-config make worker 0 --master localhost:2220 \\
          --ps localhost:2222 --ps localhost:2221 \\
          --worker localhost:2223 --worker localhost:2224)
    """
    if not (chiefs or workers or ps):
        fix = "add the addresses of the tasks, as in --worker a:2222"
        raise ClusterError(f"no address was given: {fix}")
    if len(chiefs) > 1:
        raise ClusterError(f"{len(chiefs)} chiefs were given ({', '.join(chiefs)}): keep one")
    cluster = Cluster.of(chief=chiefs[0] if chiefs else None, workers=workers, ps=ps)
    text = TFConfig(cluster, Task(Role.parse(role), index), trial, model_dir, environment).dumps()
    if problems := lint(text):
        raise ClusterError("the cluster is invalid:" + _list_problems(problems))
    echo(text)


@tf_config.command(name="lint")
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
    if problems := lint(text):
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        echo(f"{count} in {source}:{_list_problems(problems)}")
        sys.exit(1)
    echo(f"no problems in {source}")


def _read_config(config: str | None, stdin: BinaryIO) -> tuple[str, str]:
    """Return the text to check, and its name in messages."""
    if config is None:
        text = os.environ.get(VARIABLE)
        if text is None:
            reason = f"{VARIABLE} is not set; pass the JSON, a file, or -"
            raise ClusterError(f"there is nothing to check: {reason}")
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


@click.command()
@time_option("--timeout", "The time limit for all peers together.", "10s", POSITIVE_DURATION)
@click.option("--wait", is_flag=True, help="Retry until every peer answers or the time is up.")
@click.option("-v", "--verbose", is_flag=True, help="Also list the peers that answer.")
def check(timeout: float, wait: bool, verbose: bool) -> None:
    """Connect to every peer of this task, and report which do not answer, and why.

    The cluster is read from TF_CONFIG, from the variables JOB_NAME, TASK_INDEX, PS_HOSTS and
    WORKER_HOSTS, or from those of Slurm or Kubernetes. The exit code is 1 if a peer does not
    answer.

    \b
    Example:
      TF_CONFIG=$(phalanx tf-config make worker 0 --worker a:2222 --worker b:2222) \\
          phalanx check --timeout 5
    """
    # The flags of this command do not describe the task: only the environment is read.
    config = detect(argv=[])
    reports = check_peers(config, timeout=timeout, wait=wait)
    if not reports:
        echo(f"{config.task} has no peers: there is nothing to reach")
        return
    for report in reports:
        if report.reason:
            echo(f"FAIL  {report}")
        elif verbose:
            echo(f"ok    {report} ({report.seconds * 1000:.0f} ms)")
    failed = sum(report.reason is not None for report in reports)
    echo(f"{config.task}: {len(reports) - failed} of {len(reports)} peers answer")
    sys.exit(1 if failed else 0)
