"""`phalanx status`, `logs` and `cancel`: the jobs that `phalanx launch` has submitted."""

import json
import sys

import click
from rich.text import Text

from phalanx.cli.follow import (
    exit_at_once,
    follow_job,
    print_message,
    print_output,
    print_reports,
    read_lines,
)
from phalanx.cli.option_factories import time_option
from phalanx.cli.printing import echo, echo_output
from phalanx.cli.terminal import colour_state, make_console, print_table
from phalanx.errors import JobError, LaunchError, PhalanxError
from phalanx.launch import registry
from phalanx.launch.base import JobResult, LastingHandle, TaskStatus
from phalanx.launch.job_store import JobRecord, JobStore
from phalanx.launch.processes.runtime_lines import is_runtime_line


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
def status(name: str | None, as_json: bool) -> None:
    """Show the state of every task of the job NAME, or without NAME a line for every job.

    With NAME, the exit code is 0 while the job runs and after it has succeeded, otherwise 1.

    \b
    Example:
      phalanx status digits
    """
    job_store = JobStore.of_user()
    if name is None:
        names = job_store.names()
        if names:
            rows = [_describe_job(job_store.read(each)) for each in names]
            print_table(("job", "backend", "state"), rows)
        else:
            print_message("there are no jobs; start one with: phalanx launch BACKEND PROGRAM")
        return
    handle = attach(job_store.read(name))
    result = handle.wait(0)
    statuses = handle.status()
    if as_json:
        echo(json.dumps(_as_dict(name, result, statuses)))
    else:
        _print(name, result, statuses)
    sys.exit(1 if result is not None and result.exit_code else 0)


@click.command()
@click.argument("name")
@click.argument("task", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue until the job ends.")
def logs(name: str, task: str | None, follow: bool) -> None:
    """Print the output of the job NAME, or only of its task TASK, such as worker-1.

    With --follow and without TASK, the exit code is that of the job. Without --follow, it is 1 if
    the output of a task no longer exists.

    \b
    Example:
      phalanx logs -f digits chief-0
    """
    handle = attach(JobStore.of_user().read(name))
    tasks = {str(status.task): status.task for status in handle.status()}
    if task is None:
        if follow:
            exit_at_once(follow_job(name, handle))
        sys.exit(0 if print_output(handle, list(tasks.values())) else 1)
    if task not in tasks:
        raise JobError(f"the job {name!r} has no task {task!r}: it has {', '.join(tasks)}")
    found = tasks[task]
    if follow:
        print_reports(handle, print_message)
    for line in read_lines(handle, found, print_message) if follow else handle.logs(found):
        echo_output(line)
    if follow:
        exit_at_once(0)


@click.command()
@click.argument("name")
@time_option("--timeout", "How long to wait until the job has ended.", "2m")
@click.option(
    "--forget", is_flag=True, help="Only delete the record of a job whose backend no longer exists."
)
def cancel(name: str, timeout: float, forget: bool) -> None:
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
    # The backend may still hold objects of a job that has ended, or its TensorBoard.
    handle.cancel()
    if has_ended:
        job_store.forget(name)
        print_message(f"{name} had already ended; its record is deleted")
    elif handle.wait(timeout) is None:
        raise LaunchError(f"{name} still runs {timeout:g} s after it was cancelled")
    else:
        print_message(f"{name} is cancelled")


def attach(record: JobRecord) -> LastingHandle:
    launcher = registry.find_lasting(record.launcher)
    try:
        return launcher.attach(record.facts)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise LaunchError(f"{record.name} was launched by another version of Phalanx") from None


def _describe_job(record: JobRecord) -> tuple[str | Text, ...]:
    try:
        state = _describe(attach(record).wait(0))
    except PhalanxError as error:
        state = f"unknown: {error}"
    return (record.name, record.launcher, colour_state(state))


def _describe(result: JobResult | None) -> str:
    return "running" if result is None else result.describe()


def _print(name: str, result: JobResult | None, statuses: list[TaskStatus]) -> None:
    make_console().print(Text(f"{name}: ").append_text(colour_state(_describe(result))))
    rows = []
    for status in statuses:
        last_line = "" if is_runtime_line(status.last_line) else status.last_line
        count = status.restarts
        restarts = f"{count} restart{'s' * (count > 1)}" if count else ""
        state = colour_state(status.state.value)
        rows.append((str(status.task), state, restarts, Text.from_ansi(last_line)))
    print_table(("task", "state", "", "last line"), rows)


def _as_dict(name: str, result: JobResult | None, statuses: list[TaskStatus]) -> dict[str, object]:
    tasks = [
        {
            "task": str(s.task),
            "state": s.state.value,
            "restarts": s.restarts,
            "exit_code": s.exit_code,
        }
        for s in statuses
    ]
    return {
        "name": name,
        "over": result is not None,
        "exit_code": result.exit_code if result else None,
        "reason": result.reason if result else None,
        "tasks": tasks,
    }
