"""`phalanx cancel`: cancel a launched job."""

from __future__ import annotations

import click

from phalanx.cli.follow import print_message
from phalanx.cli.option_factories import time_option
from phalanx.cli.status import attach
from phalanx.errors import LaunchError, PhalanxError
from phalanx.launch.job_store import JobStore


@click.command()
@click.argument("name")
@time_option("--timeout", "How long to wait until the job has ended.", "2m")
@click.option(
    "--forget",
    is_flag=True,
    help="Only delete the record of a job whose backend no longer exists.",
)
def command(name: str, timeout: float, forget: bool) -> None:
    """End every task of the job NAME, and wait until the job has ended.

    For a job that has already ended, delete its record and everything that its backend still
    holds, so that its name can be used again. Log files are kept.

    \b
    Example:
      phalanx cancel digits
    """
    job_store = JobStore.of_user()
    if forget:
        job_store.forget(name)
        print_message(f"the record of {name} is deleted; tasks that still run are not ended")
        return
    record = job_store.read(name)
    try:
        handle = attach(record)
        has_ended = handle.wait(0) is not None
    except PhalanxError as error:
        hint = f"if this is permanent, delete the record with: phalanx cancel --forget {name}"
        raise type(error)(f"{error}; {hint}") from None
    if has_ended:
        # The backend may still hold objects of the job, or its TensorBoard.
        handle.cancel()
        job_store.forget(name)
        print_message(f"{name} had already ended; its record is deleted")
        return
    handle.cancel()
    if handle.wait(timeout) is None:
        raise LaunchError(f"{name} still runs {timeout:g} s after it was cancelled")
    print_message(f"{name} is cancelled")
