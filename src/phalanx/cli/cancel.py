"""`phalanx cancel`: end a launched job."""

from __future__ import annotations

import click

from phalanx.cli.options import DURATION
from phalanx.cli.status import attach
from phalanx.errors import LaunchError, PhalanxError
from phalanx.launch.job_store import JobStore


@click.command()
@click.argument("name")
@click.option(
    "--timeout",
    type=DURATION,
    default="2m",
    show_default=True,
    metavar="TIME",
    help="How long to wait for the end.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="End nothing, and only free the name: for a job whose manager is gone for good.",
)
def command(name: str, timeout: float, forget: bool) -> None:
    """End every task of the job NAME, and wait until it is over.

    A job that is over is forgotten, with whatever its manager still keeps of it: its name is free.
    Output in files stays where it is.

    \b
    Example:
      phalanx cancel digits
    """
    job_store = JobStore.of_user()
    if forget:
        job_store.forget(name)
        click.echo(f"phalanx: {name} is forgotten; what still runs of it goes on", err=True)
        return
    record = job_store.read(name)
    try:
        handle = attach(record)
        over = handle.wait(0) is not None
    except PhalanxError as error:
        hint = f"if that is so for good, free the name with: phalanx cancel --forget {name}"
        raise type(error)(f"{error}; {hint}") from None
    if over:
        # What a manager keeps of a job that is over goes, too: its objects, TensorBoard.
        handle.cancel()
        job_store.forget(name)
        click.echo(f"phalanx: {name} was over, and is forgotten", err=True)
        return
    handle.cancel()
    if handle.wait(timeout) is None:
        raise LaunchError(f"{name} was asked to end, but still runs after {timeout:g} s")
    click.echo(f"phalanx: {name} is cancelled", err=True)
