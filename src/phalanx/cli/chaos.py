"""`phalanx chaos`: run a job on this machine under a seeded plan of faults."""

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from phalanx.cli.guard import show_warning
from phalanx.cli.options import ARGUMENTS, MODULE, ProgramCommand, add_options, make_job
from phalanx.cli.printing import echo
from phalanx.cli.terminal import print_table
from phalanx.cluster.spec import Task, count_roles
from phalanx.errors import LaunchError
from phalanx.launch.backends.local.launcher import LocalLauncher, TaskHost
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.backends.local.preload import TENSORFLOW, find_preload
from phalanx.launch.backends.local.program_file import check_program
from phalanx.launch.chaos.catalogue import SCENARIOS, plan_faults
from phalanx.launch.chaos.injector import RECOVERED, Injector, Outcome, render_table
from phalanx.launch.chaos.network import Network, find_obstacle, open_network
from phalanx.launch.chaos.scenarios import Fault
from phalanx.launch.guarded import plan_local_guard
from phalanx.launch.job import Job
from phalanx.launch.options import (
    DATA_WORKERS,
    ELASTIC,
    ENV_FROM_FILE,
    GRACE_PERIODS,
    SHAPE,
    Option,
    make_grace_periods,
)
from phalanx.launch.values import parse_duration

_RESTARTS = 5


def _list_scenarios(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        print_table(("scenario", "what happens"), [(s.name, s.text) for s in SCENARIOS])
        context.exit()


@click.command(cls=ProgramCommand, context_settings={"allow_interspersed_args": False})
@add_options(
    *SHAPE,
    *ELASTIC,
    DATA_WORKERS,
    ENV_FROM_FILE,
    click.option(
        "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_scenarios,
        help="List the scenarios, and exit.",
    ),
    click.option(
        "--scenario", multiple=True, metavar="NAME",
        help="A scenario to run; repeat it for several, in this order.  [default: drawn by --seed]",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Draws the same faults."),
    click.option(
        "--faults", type=click.IntRange(1), default=3, show_default=True, metavar="N",
        help="How many faults to draw.",
    ),
    Option("--every", "Undisturbed time before each fault.", parse_duration, "TIME", default="20s"),
    Option(
        "--recovery-limit", "How long the job may take to make a new step.", parse_duration,
        "TIME", default="10m",
    ),
    Option(
        "--stop-limit", "Kill a task that was stopped for so long.", parse_duration, "TIME",
        default="60s",
    ),
    click.option(
        "--log-dir", metavar="DIR",
        help="The directory for the output of the tasks  [default: phalanx-logs/PROGRAM-TIME]",
    ),
    *GRACE_PERIODS,
    MODULE,
    click.argument("program", metavar="PROGRAM"),
    ARGUMENTS,
)  # fmt: skip
def command(**values: Any) -> None:
    """Run a job on this machine while its tasks fail on purpose, and print what happened.

    The faults are applied one after the other, to a job that runs as `phalanx run` would run it,
    with --restarts 5 by default. The program must train with phalanx.run or phalanx.fit, and long
    enough: it needs a model_dir, and checkpoints more often than the faults.

    The table at the end has a row for each fault: the step at which it happened, when the task was
    started again, when the run was past that step, its longest time without a step, and how many
    steps it has made twice. The exit code is 0 if the job has recovered from every fault, and has
    succeeded, or has failed where it must. A partition needs root: its task runs in a network
    namespace.

    \b
    Example:
      phalanx chaos --list
      phalanx chaos --workers 2 --ps 1 --scenario ps-killed --scenario chief-killed \\
          train.py --model-dir runs/chaos --train-steps 20000 --save-steps 500
      phalanx chaos --workers 2 --seed 7 --faults 5 train.py --model-dir runs/chaos
    """
    job = make_job(values)
    job = replace(job, restarts=job.restarts or _RESTARTS)
    check_program(job.program)
    guard = plan_local_guard(job, os.environ)
    show_warning(guard)
    faults = plan_faults(
        job.all_tasks(), values["scenario"], values["faults"], values["seed"], find_obstacle()
    )
    cut_off = list(
        dict.fromkeys(task for fault in faults if fault.scenario.cuts for task in fault.tasks)
    )
    log_dir = Path(
        values["log_dir"] or f"phalanx-logs/{job.name}-{time.strftime('%Y%m%d-%H%M%S')}-chaos"
    )
    with (
        hold_ports(len(job.largest().listening_tasks())) as ports,
        open_network(cut_off) if cut_off else contextlib.nullcontext() as network,
    ):
        launcher = LocalLauncher(
            machine=Machine.inspect(),
            ports=ports,
            log_dir=log_dir,
            run_id=uuid.uuid4().hex,
            grace_periods=make_grace_periods(values),
            guard=guard.variables,
            stop_limit=values["stop_limit"] or None,
            hang_limit=values["recovery_limit"],
            progress_file=log_dir / "progress.json",
            rejoin_seconds=values["rejoin"],
            hosts=_place(job, network),
            preload=find_preload(job.program),
            data_preload=TENSORFLOW,
        )
        code = _run(launcher, job, faults, values["recovery_limit"], values["every"], network)
    sys.exit(code)


def _place(job: Job, network: Network | None) -> dict[Task, TaskHost]:
    if network is None:
        return {}
    return {
        task: TaskHost(network.address_of(task), network.command_of(task))
        for task in job.all_tasks()
    }


def _run(
    launcher: LocalLauncher,
    job: Job,
    faults: Sequence[Fault],
    limit: float,
    pause: float,
    network: Network | None,
) -> int:
    assert launcher.progress_file is not None
    launcher.progress_file.unlink(missing_ok=True)
    handle = launcher.submit(launcher.plan(job), _Notes())
    echo(f"phalanx: {count_roles(job.all_tasks())}; output in {launcher.log_dir}", err=True)
    injector = Injector(
        handle, launcher.run_id, launcher.progress_file, limit, pause, _Notes().note, network
    )
    try:
        outcomes = injector.run(faults)
        has_recovered = all(outcome.result == RECOVERED for outcome in outcomes)
        result = handle.wait() if has_recovered else None
    finally:
        handle.cancel()
        handle.wait()
    header, *rows = render_table(outcomes)
    print_table(header, rows, numbers=header[2:7])
    if not has_recovered:
        raise LaunchError(_explain(outcomes))
    assert result is not None
    echo(f"phalanx: the job {result.reason}", err=True)
    return 0 if outcomes[-1].fault.scenario.ends_job else result.exit_code


def _explain(outcomes: Sequence[Outcome]) -> str:
    bad = next(outcome for outcome in outcomes if outcome.result != RECOVERED)
    if bad.step is None:
        return "the job made no step, or ended before all faults: let it train longer"
    tasks = ", ".join(map(str, bad.fault.tasks))
    return f"{bad.fault.scenario.name} of {tasks} at step {bad.step}: {bad.result}"


class _Notes:
    """Shows what the supervisor does; the output of the tasks is in their logs."""

    def output(self, task: object, lines: list[str]) -> None: ...

    def changed(self, status: object) -> None: ...

    def note(self, message: str) -> None:
        echo(f"phalanx: {message}", err=True)
