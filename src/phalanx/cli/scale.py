"""`phalanx scale`: change the number of workers of a running job."""

from pathlib import Path

import click

from phalanx.cli.follow import print_message
from phalanx.cli.jobs import attach
from phalanx.cli.option_factories import time_option
from phalanx.errors import JobError, LaunchError
from phalanx.launch.base import ElasticHandle
from phalanx.launch.job_store import JobStore
from phalanx.launch.processes.membership_file import (
    find_directory,
    request_workers,
    wait_for_generation,
)

_ANSWER_SECONDS = 10.0


@click.command()
@click.argument("job")
@click.option("--workers", type=click.IntRange(0), required=True, metavar="N", help="How many.")
@time_option("--timeout", "How long to wait until they train together.", "5m")
def command(job: str, workers: int, timeout: float) -> None:
    """Change the number of workers of JOB while it runs.

    JOB is the name of a job that `phalanx launch` has submitted, the log directory of a
    `phalanx run`, or the name of its program if it was started in this directory. The job must have
    been started with --min-workers or --max-workers. All trainers save, end, and start again in the
    new number, from the step that they have saved.

    \b
    Example:
      phalanx run --workers 2 --max-workers 4 train.py --model-dir runs/a
      phalanx scale train --workers 4
    """
    directory = find_directory(job, Path()) or _find_launched(job)
    before = request_workers(directory, workers, _ANSWER_SECONDS)
    if before.wanted == workers and len(before.members) == before.count_trainers(workers):
        print_message(f"{job} has {workers} workers already")
        return
    after = wait_for_generation(directory, before.generation, timeout)
    if after is None:
        raise LaunchError(
            f"{job} was asked for {workers} workers, and has not changed within {timeout:g} s: its "
            "own output says why"
        )
    print_message(f"{job}: generation {after.generation} has {', '.join(after.members)}")


def _find_launched(job: str) -> Path:
    """Return where a job that was launched keeps the state of its membership."""
    record = JobStore.of_user().find(job)
    if record is None:
        raise JobError(
            f"there is no elastic job {job!r} here: name a job of `phalanx launch`, or the log "
            "directory of a `phalanx run` with --min-workers or --max-workers"
        )
    handle = attach(record)
    if not isinstance(handle, ElasticHandle):
        raise JobError(
            f"{job} runs on {record.launcher}, which cannot change the number of workers: cancel "
            "it, and launch it with another --workers; it continues from its last checkpoint"
        )
    return handle.membership_directory()
