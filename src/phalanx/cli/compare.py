"""`phalanx compare`: compare the metrics of several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.errors import ConfigurationError

if TYPE_CHECKING:
    from phalanx.train.model_dir.runs import RunSummary

Curve = list[tuple[int, float]]

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="A metric to show. Can be repeated."
)
@click.option("--out", metavar="FILE", help="Also plot to a PNG file; needs matplotlib.")
def command(runs: tuple[str, ...], metrics: tuple[str, ...], out: str | None) -> None:
    """Compare the curves of RUNS in the terminal, and optionally in a plot.

    \b
    Example:
      phalanx compare runs/a runs/b --metric accuracy --out curves.png
    """
    from phalanx.train.model_dir.runs import read_run  # noqa: PLC0415

    found = [read_run(path) for path in runs]
    names = _choose_metrics(found, metrics)
    if out is not None:
        plot(found, names, out)
    for name in names:
        click.echo(name)
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
            click.echo(f"  {label:{width}} {line:{_WIDTH}} {ends}")
    if out is not None:
        click.echo(f"plotted to {out}")


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
    points = curve
    if len(curve) > _WIDTH:
        points = [curve[index * (len(curve) - 1) // (_WIDTH - 1)] for index in range(_WIDTH)]
    span = high - low or 1.0
    drawn = []
    for _, value in points:
        if not math.isfinite(value):
            drawn.append("?")
        else:
            drawn.append(_BARS[max(0, min(7, int((value - low) / span * 7 + 0.5)))])
    return "".join(drawn)


def plot(found: Sequence[RunSummary], names: Sequence[str], out: str) -> None:
    """Plot each metric side by side to a PNG file."""
    if not out.endswith(".png"):
        raise ConfigurationError(f"--out {out}: its name must end with .png")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "--out needs matplotlib: pip install 'phalanx[plots]', or leave out --out"
        ) from None
    figure = Figure(figsize=(6 * len(names), 4), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for name, plot_axes in zip(names, axes, strict=True):
        for number, run in enumerate(found):
            for kind, curve in find_curves(run, name).items():
                steps, values = zip(*curve, strict=True)
                plot_axes.plot(
                    steps,
                    values,
                    "o-" if kind == "eval" else "-",
                    color=f"C{number}",
                    markersize=3,
                    alpha=1.0 if kind == "eval" else 0.5,
                    label=f"{label_run(run, found)} {kind}",
                )
        plot_axes.set_title(name)
        plot_axes.set_xlabel("step")
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
    known = dict.fromkeys(
        name
        for run in found
        for point in (*run.evaluations, *run.training)
        for name in point.values
    )
    unknown = [name for name in metrics if name not in known]
    if unknown:
        raise ConfigurationError(
            f"no run has {', '.join(unknown)}: the metrics are {', '.join(sorted(known))}"
        )
    hidden = ("learning_rate", "examples_per_second")
    return list(metrics) or [name for name in known if name not in hidden]
