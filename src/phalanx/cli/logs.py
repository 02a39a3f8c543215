"""`phalanx logs`: print the output of a launched job."""

from __future__ import annotations

import sys

import click

from phalanx.cli.follow import follow_job, print_message, print_output, read_lines
from phalanx.cli.status import attach
from phalanx.errors import JobError
from phalanx.launch.job_store import JobStore


@click.command()
@click.argument("name")
@click.argument("task", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue until the job ends.")
def command(name: str, task: str | None, follow: bool) -> None:
    """Print the output of the job NAME, or only of its task TASK, such as worker-1.

    With --follow and without TASK, the exit code is that of the job.

    \b
    Example:
      phalanx logs -f digits chief-0
    """
    handle = attach(JobStore.of_user().read(name))
    tasks = {str(status.task): status.task for status in handle.status()}
    if task is None:
        if follow:
            sys.exit(follow_job(name, handle))
        print_output(handle, list(tasks.values()))
        return
    if task not in tasks:
        raise JobError(f"the job {name!r} has no task {task!r}: it has {', '.join(tasks)}")
    found = tasks[task]
    for line in read_lines(handle, found, print_message) if follow else handle.logs(found):
        click.echo(line)
