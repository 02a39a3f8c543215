"""`phalanx run`: start all tasks of a cluster on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from phalanx.cli.display import LiveDisplay, PlainDisplay, Relay
from phalanx.cli.follow import tell_end
from phalanx.cli.options import (
    ARGUMENTS,
    DRY_RUN,
    MODULE,
    ProgramCommand,
    add_options,
    make_job,
)
from phalanx.cluster.spec import Task, count_roles
from phalanx.launch.backends.local.launcher import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.backends.local.program_file import check_program
from phalanx.launch.base import JobResult
from phalanx.launch.options import (
    DATA_WORKERS,
    GRACE_PERIODS,
    SHAPE,
    TASK_COUNT,
    Option,
    make_grace_periods,
)
from phalanx.launch.processes.handle import SupervisedHandle
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.processes.supervisor import Observer

_LAST_WORDS_SECONDS = 10.0


@click.command(
    cls=ProgramCommand,
    context_settings={"allow_interspersed_args": False},
)
@add_options(
    *SHAPE,
    DATA_WORKERS,
    Option(
        "--threads",
        "Threads of each task, instead of a share of the processors.",
        TASK_COUNT,
        "N",
    ),
    click.option(
        "--no-share", is_flag=True, help="Let every task use all processors and all GPUs it likes."
    ),
    click.option(
        "--base-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Use the ports from PORT on, instead of any free ones.",
    ),
    click.option(
        "--log-dir",
        metavar="DIR",
        help="Where each task's output goes  [default: phalanx-logs/PROGRAM-TIME]",
    ),
    *GRACE_PERIODS,
    DRY_RUN,
    MODULE,
    click.argument("program", metavar="PROGRAM"),
    ARGUMENTS,
)
def command(**values: Any) -> None:
    """Start every task of a cluster on this machine, each with its own TF_CONFIG.

    PROGRAM is a Python file, with -m a module or, after --, any command. In its arguments {role},
    {index}, {ps_hosts}, {worker_hosts} and {chief_host} are filled in for each task.

    The job succeeds when the chief (without one: every worker) exits 0; parameter servers are then
    ended. The exit code is 0 for success, 1 if a task failed, 2 if nothing could be started, 130
    after Ctrl-C and 143 after SIGTERM.

    \b
    Example:
      phalanx run --workers 2 --ps 1 train.py --learning-rate 0.1
      phalanx run --workers 2 -m trainer.main
      phalanx run --no-chief --workers 2 --ps 1 old.py --job_name={role} \\
          --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}
      phalanx run --workers 3 -- ./train.sh {role} {index}
    """
    job = make_job(values)
    check_program(job.program)
    run_id = uuid.uuid4().hex
    default_log_dir = f"phalanx-logs/{job.name}-{time.strftime('%Y%m%d-%H%M%S')}-{run_id[:4]}"
    with hold_ports(len(job.listening()), values["base_port"]) as ports:
        launcher = LocalLauncher(
            machine=Machine.inspect(),
            ports=ports,
            log_dir=Path(values["log_dir"] or default_log_dir),
            run_id=run_id,
            share=not values["no_share"],
            patience=make_grace_periods(values),
        )
        plan = launcher.plan(job)
        if values["dry_run"]:
            click.echo(plan.render())
        else:
            sys.exit(_run(launcher, plan))


def _run(launcher: LocalLauncher, plan: ProcessPlan) -> int:
    """Run the plan to its end, show it, and give the exit code."""
    started = time.monotonic()
    tasks = [each.task for each in plan.tasks]
    gone = threading.Event()
    relay = Relay(on_closed=gone.set)
    with _signals() as interrupts:
        handle = launcher.submit(plan, relay)
        try:
            with _display(tasks) as display:
                relay.note(f"{count_roles(tasks)}; output in {launcher.log_dir}")
                relay.start(display)
                result = _wait(handle, relay, interrupts, gone)
                is_shown = relay.finish(_LAST_WORDS_SECONDS)
        finally:
            relay.hurry()
            handle.cancel()
            handle.wait()
    if not is_shown:
        # Whoever does not read would hold up the end of this process too.
        os._exit(result.exit_code)
    seconds = time.monotonic() - started
    # The job's outcome stands, whether or not anybody can be told.
    with contextlib.suppress(OSError):
        tell_end(result, f"{result.describe()} ({seconds:.1f} s; output in {launcher.log_dir})")
    return result.exit_code


def _wait(
    handle: SupervisedHandle,
    relay: Relay,
    interrupts: list[signal.Signals],
    gone: threading.Event,
) -> JobResult:
    """Until the job has ended, or has been asked to and then has."""
    asked = 0
    while True:
        result = handle.wait(0.1)
        if result is not None:
            return result
        if gone.is_set():
            handle.cancel(JobResult(1, "nobody reads its output any more"))
        while interrupts:
            number = interrupts.pop(0)
            relay.hurry()
            handle.cancel(JobResult(128 + number, f"ended by {number.name}"))
            asked += number == signal.SIGINT
            if asked > 1:
                handle.kill()


@contextlib.contextmanager
def _display(tasks: list[Task]) -> Iterator[Observer]:
    if sys.stdout.isatty():
        with LiveDisplay(tasks, Console()) as live:
            yield live
    else:
        yield PlainDisplay(tasks)


@contextlib.contextmanager
def _signals() -> Iterator[list[signal.Signals]]:
    """Collect the signals that ask for the end, but for those that were ignored all along."""
    received: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))

    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in asking}
    for each, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(each, note)
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
