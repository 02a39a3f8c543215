"""`phalanx check`: can this task reach its peers?"""

from __future__ import annotations

import sys

import click

from phalanx.cli.options import POSITIVE_DURATION
from phalanx.cluster import detect
from phalanx.cluster.preflight import check_peers


@click.command()
@click.option(
    "--timeout",
    type=POSITIVE_DURATION,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="The limit for all peers together.",
)
@click.option("--wait", is_flag=True, help="Keep trying until every peer answers or time is up.")
@click.option("-v", "--verbose", is_flag=True, help="List the peers that answer, too.")
def command(timeout: float, wait: bool, verbose: bool) -> None:
    """Connect to every peer of this task, and name those that do not answer, and why.

    The cluster is read from TF_CONFIG, from the variables JOB_NAME, TASK_INDEX, PS_HOSTS and
    WORKER_HOSTS, or from Slurm's or Kubernetes' own. The exit code is 1 if a peer does not answer.

    \b
    Example:
      TF_CONFIG=$(phalanx tf-config make worker 0 --worker a:2222 --worker b:2222) \\
          phalanx check --timeout 5
    """
    # The flags of this command are not the task's, so only the environment is looked at.
    config = detect(argv=[])
    reports = check_peers(config, timeout=timeout, wait=wait)
    silent = [report for report in reports if report.reason]
    if not reports:
        click.echo(f"{config.task} has no peers: there is nothing to reach")
        return
    for report in reports:
        if report.reason:
            click.echo(f"FAIL  {report}")
        elif verbose:
            click.echo(f"ok    {report} ({report.seconds * 1000:.0f} ms)")
    click.echo(f"{config.task}: {len(reports) - len(silent)} of {len(reports)} peers answer")
    sys.exit(1 if silent else 0)
