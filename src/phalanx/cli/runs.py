"""`phalanx runs`, `compare` and `board`: what runs have written to their directories."""

import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from phalanx.cli.models import BEST, Best
from phalanx.cli.option_factories import port_option
from phalanx.cli.printing import echo
from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.runs import RunSummary, find_runs, read_run

Curve = list[tuple[int, float]]

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--metric", metavar="NAME", help="The metric whose best to show.  [default: the first]"
)
@click.option("--best", type=BEST, help="Whether the lowest or the highest value is the best.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run.")
def runs(directory: str, metric: str | None, best: Best, as_json: bool) -> None:
    """List the runs in and below DIRECTORY: step, last loss, best metric, age and state.

    The state of a running run is silent if its heartbeat has stopped.

    \b
    Example:
      phalanx runs runs/
      phalanx runs runs/ --json | jq 'select(.state == "failed")'
    """
    found = [read_run(path) for path in find_runs(directory)]
    if not found:
        raise ConfigurationError(f"there is no run in {directory} or below it")
    if as_json:
        for run in found:
            echo(json.dumps(_as_dict(run, metric, best)))
        return
    _print_table(found, directory, metric, best)


def _as_dict(run: RunSummary, metric: str | None, best: Best) -> dict[str, object]:
    leader = run.best(metric, best)
    return {
        "run": run.path,
        "state": run.state,
        "step": run.step,
        "loss": _finite(run.last_loss),
        "best": leader and {"metric": leader[0], "value": _finite(leader[1]), "step": leader[2]},
        "time": run.heard,
        "reason": run.reason,
    }


def _print_table(found: list[RunSummary], directory: str, metric: str | None, best: Best) -> None:
    from phalanx.cli.terminal import colour_state, print_table  # noqa: PLC0415

    rows = []
    now = time.time()
    for run in sorted(found, key=lambda run: run.heard, reverse=True):
        leader = run.best(metric, best)
        row = (
            str(Path(run.path).relative_to(directory)),
            str(run.step),
            "" if run.last_loss is None else f"{run.last_loss:.4g}",
            "" if leader is None else f"{leader[0]} {leader[1]:.4g} at {leader[2]}",
            describe_age(now - run.heard),
            colour_state(run.state + (f": {run.reason.splitlines()[0]}" if run.reason else "")),
        )
        rows.append(row)
    header = ("run", "step", "loss", "best", "age", "state")
    print_table(header, rows, numbers=("step", "loss", "age"))


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


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="A metric to show. Can be repeated."
)
@click.option("--out", metavar="FILE", help="Also plot to a PNG file; needs matplotlib.")
def compare(runs: tuple[str, ...], metrics: tuple[str, ...], out: str | None) -> None:
    """Compare the curves of RUNS in the terminal, and optionally in a plot.

    \b
    Example:
      phalanx compare runs/a runs/b --metric accuracy --out curves.png
    """
    found = [read_run(path) for path in runs]
    names = _choose_metrics(found, metrics)
    if out is not None:
        plot(found, names, out)
    for name in names:
        echo(name)
        curves = {
            f"{label_run(run, found)} {kind}": curve
            for run in found
            for kind, curve in find_curves(run, name).items()
        }
        values = [v for curve in curves.values() for _, v in curve if math.isfinite(v)] or [0.0]
        width = max(len(label) for label in curves)
        for label, curve in curves.items():
            line = draw(curve, min(values), max(values))
            (_, first), (step, last) = curve[0], curve[-1]
            ends = f"{first:.4g} to {last:.4g} at step {step}"
            echo(f"  {label:{width}} {line:{_WIDTH}} {ends}")
    if out is not None:
        echo(f"plotted to {out}")


def label_run(run: RunSummary, runs: Sequence[RunSummary]) -> str:
    """Return the name of the run's directory, or its path if another run has the same name."""
    name = Path(run.path).resolve().name
    same = [other for other in runs if Path(other.path).resolve().name == name]
    return name if len(same) == 1 else run.path


def find_curves(run: RunSummary, name: str) -> dict[str, Curve]:
    """Return the run's curves of a metric, by `train` and `eval`, where they exist."""
    curves = {
        kind: [(point.step, point.values[name]) for point in points if name in point.values]
        for kind, points in (("train", run.training), ("eval", run.evaluations))
    }
    return {kind: curve for kind, curve in curves.items() if curve}


def draw(curve: Curve, low: float, high: float) -> str:
    """Draw a curve as one line of bars.

    >>> draw([(0, 0.0), (1, 0.5), (2, 1.0)], 0.0, 1.0)
    '▁▅█'
    """
    if len(curve) > _WIDTH:
        curve = [curve[index * (len(curve) - 1) // (_WIDTH - 1)] for index in range(_WIDTH)]
    span = high - low or 1.0
    return "".join(
        _BARS[max(0, min(7, int((value - low) / span * 7 + 0.5)))] if math.isfinite(value) else "?"
        for _, value in curve
    )


def plot(found: Sequence[RunSummary], names: Sequence[str], out: str) -> None:
    if not out.endswith(".png"):
        raise ConfigurationError(f"--out {out}: its name must end with .png")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        fix = "pip install 'phalanx[plots]', or leave out --out"
        raise ConfigurationError(f"--out needs matplotlib: {fix}") from None
    figure = Figure(figsize=(6 * len(names), 4), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for name, plot_axes in zip(names, axes, strict=True):
        for number, run in enumerate(found):
            for kind, curve in find_curves(run, name).items():
                steps, values = zip(*curve, strict=True)
                line, alpha = ("o-", 1.0) if kind == "eval" else ("-", 0.5)
                label = f"{label_run(run, found)} {kind}"
                style = {"color": f"C{number}", "markersize": 3, "alpha": alpha, "label": label}
                plot_axes.plot(steps, values, line, **style)
        plot_axes.set(title=name, xlabel="step")
        plot_axes.grid(alpha=0.3)
        plot_axes.legend()
    try:
        figure.savefig(out, dpi=120)
    except OSError as error:
        raise ConfigurationError(f"--out {out} cannot be written: {error.strerror}") from None


def _choose_metrics(found: Sequence[RunSummary], metrics: Sequence[str]) -> list[str]:
    for run in found:
        if not run.training and not run.evaluations:
            raise ConfigurationError(f"{run.path} has no curves: is it a model_dir?")
    points = [point for run in found for point in (*run.evaluations, *run.training)]
    known = dict.fromkeys(name for point in points for name in point.values)
    if unknown := ", ".join(name for name in metrics if name not in known):
        names = ", ".join(sorted(known))
        raise ConfigurationError(f"no run has {unknown}: the metrics are {names}")
    hidden = ("learning_rate", "examples_per_second")
    return list(metrics) or [name for name in known if name not in hidden]


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option("--host", default="localhost", show_default=True, help="The address to listen on.")
@port_option(6006)
def board(directory: str, host: str, port: int) -> None:
    """Show the run in DIRECTORY, or all runs below it, in TensorBoard until Ctrl-C.

    Its page Cluster shows the tasks of each run: state, step, speed, restarts, events and logs.

    \b
    Example:
      phalanx board runs/
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError("TensorBoard is not installed: pip install 'phalanx[cpu]'")
    root = Path(directory)
    if not any(next(root.rglob(name), None) for name in ("*.tfevents.*", "cluster/*.json")):
        raise ConfigurationError(f"there are no event files in {directory} or below it")
    echo("phalanx: the page Cluster shows the tasks of each run", err=True)
    # TensorBoard replaces this process: a signal that ends the command ends TensorBoard too.
    arguments = ["--logdir", directory, "--host", host, "--port", str(port)]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments])
