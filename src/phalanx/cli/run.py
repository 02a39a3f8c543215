"""`phalanx run`: run all tasks of a job on this machine."""

import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from phalanx.cli.display import PlainDisplay, QueuedDisplay, format_duration
from phalanx.cli.follow import print_message, print_result
from phalanx.cli.guard import show_warning
from phalanx.cli.options import (
    ARGUMENTS,
    DRY_RUN,
    MODULE,
    SHOW_SECRETS,
    ProgramCommand,
    add_options,
    make_job,
    print_plan,
)
from phalanx.cluster.progress import RunProgress, read_progress
from phalanx.cluster.spec import Task, count_roles
from phalanx.launch.backends.local.launcher import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.backends.local.preload import TENSORFLOW, find_preload
from phalanx.launch.backends.local.program_file import check_program
from phalanx.launch.base import JobResult
from phalanx.launch.guarded import plan_local_guard
from phalanx.launch.options import (
    DATA_WORKERS,
    ELASTIC,
    ENV_FROM_FILE,
    GRACE_PERIODS,
    SHAPE,
    TASK_COUNT,
    Option,
    make_grace_periods,
)
from phalanx.launch.processes.handle import SupervisedHandle
from phalanx.launch.processes.orphans import end_orphans
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.processes.runtime_lines import QuietObserver
from phalanx.launch.processes.supervisor import Observer
from phalanx.launch.values import parse_duration, parse_size

_LAST_OUTPUT_SECONDS = 10.0


@click.command(cls=ProgramCommand, context_settings={"allow_interspersed_args": False})
@add_options(
    *SHAPE,
    *ELASTIC,
    ENV_FROM_FILE,
    DATA_WORKERS,
    Option(
        "--threads",
        "Threads of each task  [default: an equal share of the processors]",
        TASK_COUNT,
        "N",
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
    Option(
        "--log-limit",
        "How much output of each task to keep, the newest.",
        parse_size,
        "SIZE",
        default="1G",
    ),
    *GRACE_PERIODS,
    Option(
        "--silence-limit",
        "Without a chief: fail if a worker is idle and silent for so long after another worker has "
        "succeeded. 0: never.",
        parse_duration,
        "TIME",
        default="600s",
    ),
    click.option("-v", "--verbose", is_flag=True, help="Also show what TensorFlow's runtime logs."),
    Option(
        "--stop-limit",
        "Kill a task that a signal has stopped for so long, and restart it if --restarts allows "
        "that. 0: never.",
        parse_duration,
        "TIME",
        default="60s",
    ),
    Option(
        "--hang-limit",
        "Kill all trainers if the chief reports no step for so long, and restart them if "
        "--restarts allows that. Their stacks are in the logs. 0: never.",
        parse_duration,
        "TIME",
        default="30m",
    ),
    click.option(
        "--fork/--no-fork",
        default=True,
        help="Import TensorFlow once and fork the tasks, if the program imports it at its start.  "
        "[default: --fork]",
    ),
    DRY_RUN,
    SHOW_SECRETS,
    MODULE,
    click.argument("program", metavar="PROGRAM"),
    ARGUMENTS,
)
def command(**values: Any) -> None:
    """Run every task of a job on this machine, each with its own TF_CONFIG.

    PROGRAM is a Python file, a module with -m, or any command after --. In its arguments, {role},
    {index}, {ps_hosts}, {worker_hosts} and {chief_host} are replaced for each task.

    The screen shows what the program prints. What TensorFlow's runtime logs is in the log files,
    and on the screen only with -v, or when a task fails.

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
    log_dir = Path(values["log_dir"] or default_log_dir)
    guard = plan_local_guard(job, os.environ)
    show_warning(guard)
    if not values["dry_run"] and (count := end_orphans()):
        runs = "a run" if count == 1 else f"{count} runs"
        print_message(f"tasks of {runs} on this machine whose launcher was killed are ended")
    with hold_ports(len(job.largest().listening_tasks()), values["base_port"]) as ports:
        launcher = LocalLauncher(
            machine=Machine.inspect(),
            ports=ports,
            log_dir=log_dir,
            run_id=run_id,
            share=not values["no_share"],
            grace_periods=make_grace_periods(values),
            silence_limit=values["silence_limit"] or None,
            guard=guard.variables,
            log_limit=values["log_limit"],
            stop_limit=values["stop_limit"] or None,
            hang_limit=values["hang_limit"] or None,
            progress_file=log_dir / "progress.json",
            rejoin_seconds=values["rejoin"],
            preload=find_preload(job.program) if values["fork"] else (),
            data_preload=TENSORFLOW if values["fork"] else (),
        )
        plan = launcher.plan(job)
        if values["dry_run"]:
            print_plan(plan.render(), values)
        else:
            sys.exit(_run(launcher, plan, values["verbose"]))


def _run(launcher: LocalLauncher, plan: ProcessPlan, is_verbose: bool) -> int:
    started = time.monotonic()
    progress_file = launcher.log_dir / "progress.json"
    # An earlier run may have used the same directory.
    with contextlib.suppress(OSError):
        progress_file.unlink()
    tasks = [each.task for each in plan.tasks]
    output_closed = threading.Event()
    queued = QueuedDisplay(on_closed=output_closed.set)
    with _catch_signals() as signals:
        handle = launcher.submit(plan, queued if is_verbose else QuietObserver(queued))
        try:
            with _open_display(tasks, progress_file) as display:
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
    summary = _summarize(result, read_progress(progress_file), seconds)
    # The exit code is that of the job, even if the result cannot be printed.
    with contextlib.suppress(OSError):
        print_result(result, f"{summary}; output in {launcher.log_dir}")
        progress_file.unlink()
    return result.exit_code


def _summarize(result: JobResult, progress: RunProgress | None, seconds: float) -> str:
    """Say in one line how the job ended: `succeeded in 0:45: step 400, loss 0.021, 812 ex…`."""
    facts = []
    if progress is not None:
        facts.append(f"step {progress.step:,}")
        if progress.loss is not None:
            facts.append(f"loss {progress.loss:.4g}")
        if progress.examples_per_second:
            facts.append(f"{progress.examples_per_second:,.0f} examples/s")
    duration = format_duration(seconds)
    if result.exit_code == 0:
        return f"succeeded in {duration}" + (f" ({', '.join(facts)})" if facts else "")
    return f"{result.describe()} (after {', '.join([duration, *facts])})"


def _wait(
    handle: SupervisedHandle,
    display: QueuedDisplay,
    signals: list[signal.Signals],
    output_closed: threading.Event,
) -> JobResult:
    """Wait for the end of the job; cancel it on a signal, and kill it on a second Ctrl-C."""
    interrupts = 0
    while (result := handle.wait(0.1)) is None:
        if output_closed.is_set():
            handle.cancel(JobResult(1, "the reader of its output closed the pipe"))
        while signals:
            number = signals.pop(0)
            display.drop_if_full()
            handle.cancel(JobResult(128 + number, f"ended by {number.name}"))
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                handle.kill()
    return result


def _open_display(
    tasks: list[Task], progress_file: Path
) -> contextlib.AbstractContextManager[Observer]:
    if sys.stdout.isatty():
        # Only a terminal needs Rich, whose import takes longer than the rest of the command.
        from phalanx.cli.live_display import LiveDisplay  # noqa: PLC0415
        from phalanx.cli.terminal import make_console  # noqa: PLC0415

        return LiveDisplay(tasks, make_console(), partial(read_progress, progress_file))
    return contextlib.nullcontext(PlainDisplay(tasks))


@contextlib.contextmanager
def _catch_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT, SIGTERM and SIGHUP, except those that this process was started to ignore."""
    received: list[signal.Signals] = []
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in caught}
    for each, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(each, lambda number, _: received.append(signal.Signals(number)))
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
