"""`phalanx compare`: the curves of several runs side by side."""

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
    "--metric", "metrics", multiple=True, metavar="NAME", help="Only this one; repeat it."
)
@click.option("--out", metavar="FILE", help="Plot into a PNG file as well; needs matplotlib.")
def command(runs: tuple[str, ...], metrics: tuple[str, ...], out: str | None) -> None:
    """Show the curves of RUNS side by side, in the terminal and as a picture.

    \b
    Example:
      phalanx compare runs/a runs/b --metric accuracy --out curves.png
    """
    from phalanx.train.model_dir.runs import read_run  # noqa: PLC0415

    found = [read_run(path) for path in runs]
    names = _choose(found, metrics)
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
        click.echo(f"plotted into {out}")


def label_run(run: RunSummary, beside: Sequence[RunSummary]) -> str:
    """The name of its directory, or its whole path if another run is called the same."""
    name = Path(run.path).resolve().name
    alike = [other for other in beside if Path(other.path).resolve().name == name]
    return name if len(alike) == 1 else run.path


def find_curves(run: RunSummary, name: str) -> dict[str, Curve]:
    """A run's curves of a metric: those of the training and of the evaluation that there are."""
    curves = {
        kind: [(point.step, point.values[name]) for point in points if name in point.values]
        for kind, points in (("train", run.training), ("eval", run.evaluations))
    }
    return {kind: curve for kind, curve in curves.items() if curve}


def draw(curve: Curve, low: float, high: float) -> str:
    """A curve in one line.

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
    """One picture for each metric, side by side in a PNG file."""
    if not out.endswith(".png"):
        raise ConfigurationError(f"--out {out}: its name must end with .png")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "a picture needs matplotlib: pip install 'phalanx[plots]', or leave --out out"
        ) from None
    figure = Figure(figsize=(6 * len(names), 4), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for name, place in zip(names, axes, strict=True):
        for number, run in enumerate(found):
            for kind, curve in find_curves(run, name).items():
                steps, values = zip(*curve, strict=True)
                place.plot(
                    steps,
                    values,
                    "o-" if kind == "eval" else "-",
                    color=f"C{number}",
                    markersize=3,
                    alpha=1.0 if kind == "eval" else 0.5,
                    label=f"{label_run(run, found)} {kind}",
                )
        place.set_title(name)
        place.set_xlabel("step")
        place.grid(alpha=0.3)
        place.legend()
    try:
        figure.savefig(out, dpi=120)
    except OSError as error:
        raise ConfigurationError(f"--out {out} cannot be written: {error.strerror}") from None


def _choose(found: Sequence[RunSummary], metrics: Sequence[str]) -> list[str]:
    for run in found:
        if not run.training and not run.evaluations:
            raise ConfigurationError(f"{run.path} has no curves: is it a model_dir?")
    there = dict.fromkeys(
        name
        for run in found
        for point in (*run.evaluations, *run.training)
        for name in point.values
    )
    unknown = [name for name in metrics if name not in there]
    if unknown:
        raise ConfigurationError(
            f"no run has {', '.join(unknown)}: there are {', '.join(sorted(there))}"
        )
    hidden = ("learning_rate", "examples_per_second")
    return list(metrics) or [name for name in there if name not in hidden]
