"""`phalanx logs`: what the tasks of a launched job have printed."""

from __future__ import annotations

import sys

import click

from phalanx.cli.follow import follow as follow_job
from phalanx.cli.follow import follow_lines, show, tell
from phalanx.cli.status import attach
from phalanx.errors import JobError
from phalanx.launch.job_store import JobStore


@click.command()
@click.argument("name")
@click.argument("task", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
def command(name: str, task: str | None, follow: bool) -> None:
    """Print the output of the job NAME, or of its task TASK alone, as in worker-1.

    With --follow and without TASK the exit code is the job's.

    \b
    Example:
      phalanx logs -f digits chief-0
    """
    handle = attach(JobStore.of_user().read(name))
    tasks = {str(status.task): status.task for status in handle.status()}
    if task is None:
        if follow:
            sys.exit(follow_job(name, handle))
        show(handle, list(tasks.values()), follow=False)
        return
    if task not in tasks:
        raise JobError(f"the job {name!r} has no task {task!r}: it has {', '.join(tasks)}")
    found = tasks[task]
    for line in follow_lines(handle, found, tell) if follow else handle.logs(found):
        click.echo(line)
