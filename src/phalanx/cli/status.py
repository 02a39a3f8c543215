"""`phalanx status`: show the state of launched jobs."""

from __future__ import annotations

import json
import sys

import click

from phalanx.errors import LaunchError, PhalanxError
from phalanx.launch import registry
from phalanx.launch.base import JobResult, LastingHandle, TaskStatus
from phalanx.launch.job_store import JobRecord, JobStore


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
def command(name: str | None, as_json: bool) -> None:
    """Show the state of every task of the job NAME, or without NAME a line for every job.

    With NAME, the exit code is 0 while the job runs and after it has succeeded, otherwise 1.

    \b
    Example:
      phalanx status digits
    """
    job_store = JobStore.of_user()
    if name is None:
        for each in job_store.names():
            click.echo(_describe_job(job_store.read(each)))
        return
    handle = attach(job_store.read(name))
    result = handle.wait(0)
    statuses = handle.status()
    if as_json:
        click.echo(json.dumps(_as_dict(name, result, statuses)))
    else:
        _print(name, result, statuses)
    sys.exit(1 if result is not None and result.exit_code else 0)


def attach(record: JobRecord) -> LastingHandle:
    """Return the handle of a job in the job store."""
    launcher = registry.find_lasting(record.launcher)
    try:
        return launcher.attach(record.facts)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise LaunchError(f"{record.name} was launched by another version of Phalanx") from None


def _describe_job(record: JobRecord) -> str:
    try:
        state = _describe(attach(record).wait(0))
    except PhalanxError as error:
        state = f"unknown: {error}"
    return f"{record.name}  {record.launcher}  {state}"


def _describe(result: JobResult | None) -> str:
    return "running" if result is None else result.describe()


def _print(name: str, result: JobResult | None, statuses: list[TaskStatus]) -> None:
    click.echo(f"{name}: {_describe(result)}")
    width = max(len(str(each.task)) for each in statuses)
    for status in statuses:
        restarts = f"  {status.restarts} restarts" if status.restarts else ""
        last = f"  {status.last_line}" if status.last_line else ""
        line = f"  {str(status.task).ljust(width)}  {status.state.value:8}{restarts}{last}"
        click.echo(line.rstrip())


def _as_dict(name: str, result: JobResult | None, statuses: list[TaskStatus]) -> dict[str, object]:
    return {
        "name": name,
        "over": result is not None,
        "exit_code": result.exit_code if result else None,
        "reason": result.reason if result else None,
        "tasks": [
            {
                "task": str(status.task),
                "state": status.state.value,
                "restarts": status.restarts,
                "exit_code": status.exit_code,
            }
            for status in statuses
        ],
    }
