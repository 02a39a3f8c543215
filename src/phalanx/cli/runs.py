"""`phalanx runs`: the runs under a directory."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.errors import ConfigurationError

if TYPE_CHECKING:
    from phalanx.train.model_dir.runs import RunSummary


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option("--metric", metavar="NAME", help="Which metric's best to show.  [default: the first]")
@click.option("--best", type=click.Choice(["min", "max"]), help="Whether less or more is better.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run.")
def command(directory: str, metric: str | None, best: Any, as_json: bool) -> None:
    """List the runs in and under DIRECTORY: step, last loss, best metric, age and state.

    A run that says it runs but was not heard of for a while is silent.

    \b
    Example:
      phalanx runs runs/
      phalanx runs runs/ --json | jq 'select(.state == "failed")'
    """
    from phalanx.train.model_dir.runs import find_runs, read_run  # noqa: PLC0415

    found = [read_run(path) for path in find_runs(directory)]
    if not found:
        raise ConfigurationError(f"there is no run in {directory} or under it")
    if as_json:
        for run in found:
            click.echo(json.dumps(_as_dict(run, metric, best)))
        return
    _print_table(found, directory, metric, best)


def _as_dict(run: RunSummary, metric: str | None, best: Any) -> dict[str, Any]:
    leader = run.best(metric, best)
    return {
        "run": run.path,
        "state": run.state,
        "step": run.step,
        "loss": _finite(run.last_loss),
        "best": None
        if leader is None
        else {"metric": leader[0], "value": _finite(leader[1]), "step": leader[2]},
        "time": run.heard,
        "reason": run.reason,
    }


def _print_table(found: list[RunSummary], directory: str, metric: str | None, best: Any) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("run", "step", "loss", "best", "age", "state"):
        table.add_column(name, justify="right" if name in ("step", "loss", "age") else "left")
    now = time.time()
    for run in sorted(found, key=lambda run: run.heard, reverse=True):
        leader = run.best(metric, best)
        table.add_row(
            str(Path(run.path).relative_to(directory)),
            str(run.step),
            "" if run.last_loss is None else f"{run.last_loss:.4g}",
            "" if leader is None else f"{leader[0]} {leader[1]:.4g} at {leader[2]}",
            describe_age(now - run.heard),
            run.state + (f": {run.reason.splitlines()[0]}" if run.reason else ""),
        )
    # A pipe has no width: nothing is cut off there.
    Console(width=None if sys.stdout.isatty() else 300).print(table)


def describe_age(seconds: float) -> str:
    """How long ago, in one unit.

    >>> describe_age(30), describe_age(4000), describe_age(200_000)
    ('30 s', '67 min', '2 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
