"""`phalanx run`: run all tasks of a job on this machine."""

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

from phalanx.cli.display import LiveDisplay, PlainDisplay, QueuedDisplay
from phalanx.cli.follow import print_result
from phalanx.cli.options import (
    ARGUMENTS,
    COUNT,
    DATA_WORKERS,
    DRY_RUN,
    MODULE,
    PATIENCE,
    SHAPE,
    in_order,
    make_job,
)
from phalanx.cli.program_command import ProgramCommand
from phalanx.cluster.spec import Task, count_roles
from phalanx.launch.backends.local.launcher import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.backends.local.program_file import check_program
from phalanx.launch.base import JobResult
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.processes.supervisor import Observer, SupervisedHandle
from phalanx.launch.termination import GracePeriods

_LAST_OUTPUT_SECONDS = 10.0


@click.command(cls=ProgramCommand, context_settings={"allow_interspersed_args": False})
@in_order(
    *SHAPE,
    DATA_WORKERS,
    click.option(
        "--threads",
        type=COUNT,
        metavar="N",
        help="Threads of each task  [default: an equal share of the processors]",
    ),
    click.option(
        "--no-share", is_flag=True, help="Let every task use all processors and all GPUs."
    ),
    click.option(
        "--base-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="The first of consecutive ports to use  [default: any free ports]",
    ),
    click.option(
        "--log-dir",
        metavar="DIR",
        help="The directory for the output of the tasks  [default: phalanx-logs/PROGRAM-TIME]",
    ),
    *PATIENCE,
    DRY_RUN,
    MODULE,
    click.argument("program", metavar="PROGRAM"),
    ARGUMENTS,
)
def command(**values: Any) -> None:
    """Run every task of a job on this machine, each with its own TF_CONFIG.

    PROGRAM is a Python file, a module with -m, or any command after --. In its arguments, {role},
    {index}, {ps_hosts}, {worker_hosts} and {chief_host} are replaced for each task.

    The job succeeds when the chief exits with 0 or, without a chief, when every worker does; the
    parameter servers are then ended. The exit code is 0 on success, 1 if a task failed, 2 if
    nothing could be started, 130 after Ctrl-C and 143 after SIGTERM.

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
    with hold_ports(len(job.listening_tasks()), values["base_port"]) as ports:
        launcher = LocalLauncher(
            machine=Machine.inspect(),
            ports=ports,
            log_dir=Path(values["log_dir"] or default_log_dir),
            run_id=run_id,
            share=not values["no_share"],
            grace_periods=GracePeriods(
                values["grace"], values["linger"], values["evaluator_linger"]
            ),
        )
        plan = launcher.plan(job)
        if values["dry_run"]:
            click.echo(plan.render())
        else:
            sys.exit(_run(launcher, plan))


def _run(launcher: LocalLauncher, plan: ProcessPlan) -> int:
    """Run the plan to its end, display it, and return the exit code."""
    started = time.monotonic()
    tasks = [each.task for each in plan.tasks]
    output_closed = threading.Event()
    queued = QueuedDisplay(on_closed=output_closed.set)
    with _catch_signals() as signals:
        handle = launcher.submit(plan, queued)
        try:
            with _open_display(tasks) as display:
                queued.note(f"{count_roles(tasks)}; output in {launcher.log_dir}")
                queued.start(display)
                result = _wait(handle, queued, signals, output_closed)
                is_shown = queued.finish(_LAST_OUTPUT_SECONDS)
        finally:
            queued.drop_if_full()
            handle.cancel()
            handle.wait()
    if not is_shown:
        # A normal exit would flush the streams, and block on the same reader.
        os._exit(result.exit_code)
    seconds = time.monotonic() - started
    # The exit code is that of the job, even if the result cannot be printed.
    with contextlib.suppress(OSError):
        print_result(result, f"{result.describe()} ({seconds:.1f} s; output in {launcher.log_dir})")
    return result.exit_code


def _wait(
    handle: SupervisedHandle,
    display: QueuedDisplay,
    signals: list[signal.Signals],
    output_closed: threading.Event,
) -> JobResult:
    """Wait for the end of the job; cancel it on a signal, and kill it on a second Ctrl-C."""
    interrupts = 0
    while True:
        result = handle.wait(0.1)
        if result is not None:
            return result
        if output_closed.is_set():
            handle.cancel(JobResult(1, "the reader of its output closed the pipe"))
        while signals:
            number = signals.pop(0)
            display.drop_if_full()
            handle.cancel(JobResult(128 + number, f"ended by {number.name}"))
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                handle.kill()


@contextlib.contextmanager
def _open_display(tasks: list[Task]) -> Iterator[Observer]:
    if sys.stdout.isatty():
        with LiveDisplay(tasks, Console()) as live:
            yield live
    else:
        yield PlainDisplay(tasks)


@contextlib.contextmanager
def _catch_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT, SIGTERM and SIGHUP, except those that this process was started to ignore."""
    received: list[signal.Signals] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))

    before = {
        each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    for each, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(each, receive)
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
