"""`phalanx runs`: list the runs below a directory."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from phalanx.cli.trained_model import BEST
from phalanx.errors import ConfigurationError

if TYPE_CHECKING:
    from phalanx.train.model_dir.runs import RunSummary

Best = Literal["min", "max"] | None


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--metric", metavar="NAME", help="The metric whose best to show.  [default: the first]"
)
@click.option("--best", type=BEST, help="Whether the lowest or the highest value is the best.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run.")
def command(directory: str, metric: str | None, best: Best, as_json: bool) -> None:
    """List the runs in and below DIRECTORY: step, last loss, best metric, age and state.

    The state of a running run is silent if its heartbeat has stopped.

    \b
    Example:
      phalanx runs runs/
      phalanx runs runs/ --json | jq 'select(.state == "failed")'
    """
    from phalanx.train.model_dir.runs import find_runs, read_run  # noqa: PLC0415

    found = [read_run(path) for path in find_runs(directory)]
    if not found:
        raise ConfigurationError(f"there is no run in {directory} or below it")
    if as_json:
        for run in found:
            click.echo(json.dumps(_as_dict(run, metric, best)))
        return
    _print_table(found, directory, metric, best)


def _as_dict(run: RunSummary, metric: str | None, best: Best) -> dict[str, object]:
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


def _print_table(found: list[RunSummary], directory: str, metric: str | None, best: Best) -> None:
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
    # In a pipe, do not cut lines to the width of a terminal.
    Console(width=None if sys.stdout.isatty() else 300).print(table)


def describe_age(seconds: float) -> str:
    """Write an age in one unit.

    >>> describe_age(30), describe_age(4000), describe_age(200_000)
    ('30 s', '67 min', '2 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
