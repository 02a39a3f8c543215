"""`phalanx run`: start all tasks of a cluster on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from phalanx.cli.display import LiveDisplay, PlainDisplay, Relay, count_roles
from phalanx.cli.options import Seconds
from phalanx.cli.program import ProgramCommand
from phalanx.cluster.spec import Task
from phalanx.launch.base import JobResult
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.local.launcher import LocalLauncher
from phalanx.launch.local.machine import Machine
from phalanx.launch.local.ports import hold_ports
from phalanx.launch.local.program import check_program
from phalanx.launch.processes.handle import SupervisedHandle
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.processes.supervisor import Observer
from phalanx.launch.rules import Patience

_COUNT = click.IntRange(1, 10_000)
_LAST_WORDS_SECONDS = 10.0


@click.command(
    cls=ProgramCommand,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--workers", type=_COUNT, metavar="N", help="Workers beside the chief.")
@click.option("--ps", type=_COUNT, metavar="N", help="Parameter servers.")
@click.option("--no-chief", is_flag=True, help="Only workers: worker 0 has the chief's duties.")
@click.option("--evaluator", is_flag=True, help="A task that evaluates the checkpoints.")
@click.option(
    "--data-workers",
    type=_COUNT,
    metavar="N",
    help="Processes that prepare the data (tf.data service), with a dispatcher.",
)
@click.option("--model-dir", metavar="DIR", help="Put into TF_CONFIG as model_dir.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="How often a task that fails is started again.",
)
@click.option(
    "--threads",
    type=_COUNT,
    metavar="N",
    help="Threads of each task, instead of a share of the processors.",
)
@click.option(
    "--no-share", is_flag=True, help="Let every task use all processors and all GPUs it likes."
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Use the ports from PORT on, instead of any free ones.",
)
@click.option(
    "--log-dir",
    metavar="DIR",
    help="Where each task's output goes  [default: phalanx-logs/PROGRAM-TIME]",
)
@click.option(
    "--grace",
    type=Seconds(),
    default=Patience.grace,
    show_default=True,
    metavar="SECONDS",
    help="Between SIGTERM and SIGKILL, when a task is ended.",
)
@click.option(
    "--linger",
    type=Seconds(),
    default=Patience.linger,
    show_default=True,
    metavar="SECONDS",
    help="How long workers may go on after the chief is done.",
)
@click.option(
    "--evaluator-linger",
    type=Seconds(),
    default=Patience.evaluator_linger,
    show_default=True,
    metavar="SECONDS",
    help="How long the evaluator may go on after the chief is done.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in `python -m`.")
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    workers: int | None,
    ps: int | None,
    no_chief: bool,
    evaluator: bool,
    data_workers: int | None,
    model_dir: str | None,
    restarts: int,
    threads: int | None,
    no_share: bool,
    base_port: int | None,
    log_dir: str | None,
    grace: float,
    linger: float,
    evaluator_linger: float,
    dry_run: bool,
    module: bool,
    program: str,
    arguments: Sequence[str],
    is_command: bool,
) -> None:
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
    script = ProgramKind.COMMAND if is_command else ProgramKind.FILE
    job = Job(
        name=Path(program).stem,
        program=Program(ProgramKind.MODULE if module else script, program, tuple(arguments)),
        chief=not no_chief,
        workers=workers or 0,
        ps=ps or 0,
        evaluators=int(evaluator),
        model_dir=model_dir,
        restarts=restarts,
        threads=threads,
        data_workers=data_workers or 0,
    )
    job.validate()
    check_program(job.program)
    run_id = uuid.uuid4().hex
    default_log_dir = f"phalanx-logs/{job.name}-{time.strftime('%Y%m%d-%H%M%S')}-{run_id[:4]}"
    with hold_ports(len(job.listening()), base_port) as ports:
        launcher = LocalLauncher(
            machine=Machine.inspect(),
            ports=ports,
            log_dir=Path(log_dir or default_log_dir),
            run_id=run_id,
            share=not no_share,
            patience=Patience(grace, linger, evaluator_linger),
        )
        plan = launcher.plan(job)
        if dry_run:
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
    _report(result, time.monotonic() - started, launcher.log_dir)
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


def _report(result: JobResult, seconds: float, log_dir: Path) -> None:
    lines = []
    if result.last_lines:
        lines = [f"phalanx: the last lines of {result.failed}:"]
        lines += [f"    {line}" for line in result.last_lines]
    outcome = "succeeded" if result.exit_code == 0 else f"failed: {result.reason}"
    lines.append(f"phalanx: {outcome} ({seconds:.1f} s; output in {log_dir})")
    # The job's outcome stands, whether or not anybody can be told.
    with contextlib.suppress(OSError):
        click.echo("\n".join(lines), err=True)


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
