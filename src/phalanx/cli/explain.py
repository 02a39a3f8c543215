"""`phalanx explain`: what a run will need, before anything starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from phalanx.cli.option_factories import count_option
from phalanx.cli.options import add_options
from phalanx.cli.printing import echo
from phalanx.cli.terminal import print_table
from phalanx.cluster import Cluster
from phalanx.cluster.spec import Role
from phalanx.errors import ConfigurationError
from phalanx.launch.options import MEMORY
from phalanx.launch.processes.runtime_lines import import_tensorflow
from phalanx.records.html import format_bytes

if TYPE_CHECKING:
    from phalanx.train.run_estimate import RunEstimate, TaskEstimate

_HEADER = ("task", "buffers", "weights", "slots", "working", "memory", "sent", "received", "saves")


@click.command()
@click.argument("program", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@count_option("--workers", text="Workers beside the chief.", default=0, least=0)
@count_option("--ps", text="Parameter servers.", default=0, least=0)
@add_options(MEMORY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    program: str,
    arguments: tuple[str, ...],
    workers: int,
    ps: int,
    memory: tuple[Mapping[Role, int], ...],
    as_json: bool,
) -> None:
    """Estimate what each task of a run of PROGRAM needs. No cluster is started.

    The program runs up to its call of phalanx.run. Then the model is built, without its sparse
    tables, and one batch is read. For each task, the table shows what it holds: weights, slots of
    the optimizer, and working memory (gradients, rows of a batch, copies for saves in the
    background). The activations of the layers are not included. Messages are those of one step of
    each trainer. With --memory, a run that does not fit is refused.

    \b
    Example:
      phalanx explain train.py --ps 4 --workers 8
      phalanx explain train.py --ps 4 --workers 8 --memory ps=64G --memory 16G -- --rows 1000000000
    """
    import_tensorflow()
    from phalanx.train.experiment_loader import load_program  # noqa: PLC0415
    from phalanx.train.run_estimate import estimate_run  # noqa: PLC0415

    loaded = load_program(program, arguments)
    estimate = estimate_run(loaded.experiment, loaded.config, make_cluster(workers, ps))
    if as_json:
        echo(json.dumps(_describe(estimate), indent=2))
    else:
        _show(estimate)
    limits: dict[Role, int] = {}
    for amounts in sorted(memory, key=len, reverse=True):
        limits |= amounts
    check_memory(estimate.tasks, limits)


def make_cluster(workers: int, ps: int) -> Cluster:
    """Make the cluster of `phalanx run --workers N --ps N`, whose addresses nobody uses."""
    if not workers and not ps:
        return Cluster()
    return Cluster.of(
        chief="chief:1",
        workers=[f"worker-{index}:1" for index in range(workers)],
        ps=[f"ps-{index}:1" for index in range(ps)],
    )


def check_memory(tasks: Sequence[TaskEstimate], limits: Mapping[Role, int]) -> None:
    """Raise an error for a task that needs more memory than its role has."""
    for each in tasks:
        role, limit = each.task.role, limits.get(each.task.role)
        if limit is None or each.memory_bytes <= limit:
            continue
        fixed = each.memory_bytes - each.weight_bytes - each.slot_bytes - each.working_bytes
        count = sum(other.task.role is role for other in tasks)
        held = count * (each.memory_bytes - fixed)
        advice = "give it more memory"
        if role is Role.PS and limit > fixed:
            advice += f", or start {-(-held // (limit - fixed))} parameter servers"
        elif role is not Role.PS and not any(other.task.role is Role.PS for other in tasks):
            advice += ", or keep the variables on parameter servers (--ps)"
        raise ConfigurationError(
            f"{each.task} needs {format_bytes(each.memory_bytes)} of memory, but has "
            f"{format_bytes(limit)}: {advice}"
        )


def _show(estimate: RunEstimate) -> None:
    echo(f"trains {estimate.strategy}\n")
    rows = []
    # Tasks of a role with the same figures share a row.
    for (_, cells), group in groupby(estimate.tasks, lambda each: (each.task.role, _cells(each))):
        first, *others = (each.task for each in group)
        rows.append((f"{first} to {others[-1]}" if others else str(first), *cells))
    print_table(_HEADER, rows, numbers=_HEADER[1:])
    echo()
    for path, count in estimate.looked_up.items():
        echo(f"a step of a trainer looks up {count:,} rows of {path}")
    echo(
        f"a checkpoint has {format_bytes(estimate.checkpoint_bytes)}; a save stops the training "
        f"for about {estimate.stall_seconds:.2g} s"
    )


def _cells(each: TaskEstimate) -> tuple[str, ...]:
    sizes = (
        each.weight_bytes, each.slot_bytes, each.working_bytes, each.memory_bytes,
        each.sent_bytes, each.received_bytes, each.saved_bytes,
    )  # fmt: skip
    return (str(each.buffers), *map(format_bytes, sizes))


def _describe(estimate: RunEstimate) -> dict[str, object]:
    tasks = [
        {**dataclasses.asdict(each), "task": str(each.task), "memory_bytes": each.memory_bytes}
        for each in estimate.tasks
    ]
    return {
        "strategy": estimate.strategy,
        "tasks": tasks,
        "looked_up": estimate.looked_up,
        "checkpoint_bytes": estimate.checkpoint_bytes,
        "stall_seconds": estimate.stall_seconds,
    }
