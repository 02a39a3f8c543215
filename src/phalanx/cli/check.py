"""`phalanx check`: check that this task can reach its peers."""

from __future__ import annotations

import sys

import click

from phalanx.cli.option_factories import time_option
from phalanx.cli.values import SOME_DURATION
from phalanx.cluster import detect
from phalanx.cluster.preflight import check_peers


@click.command()
@time_option("--timeout", "The time limit for all peers together.", "10s", SOME_DURATION)
@click.option("--wait", is_flag=True, help="Retry until every peer answers or the time is up.")
@click.option("-v", "--verbose", is_flag=True, help="Also list the peers that answer.")
def command(timeout: float, wait: bool, verbose: bool) -> None:
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
        click.echo(f"{config.task} has no peers: there is nothing to reach")
        return
    for report in reports:
        if report.reason:
            click.echo(f"FAIL  {report}")
        elif verbose:
            click.echo(f"ok    {report} ({report.seconds * 1000:.0f} ms)")
    failed = sum(report.reason is not None for report in reports)
    click.echo(f"{config.task}: {len(reports) - failed} of {len(reports)} peers answer")
    sys.exit(1 if failed else 0)
