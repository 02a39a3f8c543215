"""Following a job that somebody else looks after, and telling how it ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import click

from phalanx.cli.display import PlainDisplay
from phalanx.cluster.spec import Task
from phalanx.launch.base import Handle, JobResult


def follow(name: str, handle: Handle) -> int:
    """Show all output until the job is over; the exit code is the job's. Ctrl-C leaves it alone."""
    tasks = [status.task for status in handle.status()]
    try:
        show(handle, tasks, follow=True)
        result = handle.wait()
    except KeyboardInterrupt:
        click.echo(f"\nphalanx: {name} goes on; end it with: phalanx cancel {name}", err=True)
        return 130
    assert result is not None
    tell_end(name, result)
    return result.exit_code


def show(handle: Handle, tasks: Sequence[Task], follow: bool) -> None:
    """The output of these tasks, each line with its task's name; side by side while they run."""
    display = PlainDisplay(tasks)

    def read(task: Task) -> None:
        for line in handle.logs(task, follow):
            display.output(task, [line])

    if not follow:
        for task in tasks:
            read(task)
        return
    # Daemons, so that Ctrl-C ends this command and not the job.
    threads = [threading.Thread(target=read, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)


def tell_end(name: str, result: JobResult) -> None:
    """In a sentence how the job ended, with the last words of whoever failed."""
    if result.last_lines:
        click.echo(f"phalanx: the last lines of {result.failed}:", err=True)
        click.echo("".join(f"    {line}\n" for line in result.last_lines), err=True, nl=False)
    outcome = "succeeded" if result.exit_code == 0 else f"failed: {result.reason}"
    click.echo(f"phalanx: {name} {outcome}", err=True)
