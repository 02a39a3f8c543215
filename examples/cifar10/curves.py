"""Write the evaluations of one or several runs as a table (CSV) and as a plot (PNG).

    python examples/cifar10/curves.py runs/sync runs/async --epochs 60 --out curves

writes curves.csv and curves.png. --epochs makes runs with different numbers of steps comparable:
the last step of each run is that many epochs.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from phalanx.train.model_dir.metrics_log import read_evaluations

COLUMNS = ["run", "step", "epoch", "seconds", "accuracy", "loss"]


def read_rows(run: Path, epochs: float | None) -> Iterator[list[object]]:
    evaluations = read_evaluations(str(run))
    if not evaluations:
        raise SystemExit(f"{run} has no evaluations: pass the --model-dir of a run")
    # TensorFlow puts the creation time into the names of event files.
    started = min(float(file.name.split(".")[3]) for file in run.glob("events.out.tfevents.*"))
    for evaluation in evaluations:
        epoch = f"{evaluation.step * epochs / evaluations[-1].step:.2f}" if epochs else ""
        values = [f"{evaluation.values[name]:.4f}" for name in COLUMNS[4:]]
        yield [run.name, evaluation.step, epoch, round(evaluation.time - started), *values]


def plot(rows: list[list[object]], out: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    x_column = "epoch" if rows[0][2] else "step"
    for name in dict.fromkeys(row[0] for row in rows):
        run = [row for row in rows if row[0] == name]
        x = [float(str(row[COLUMNS.index(x_column)])) for row in run]
        axes.plot(x, [100 * float(str(row[4])) for row in run], "o-", ms=3, label=name)
    axes.set_xlabel(x_column)
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="MODEL_DIR")
    parser.add_argument(
        "--epochs", type=float, help="the number of epochs that the last step stands for"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("curves"), help="output path, without .csv and .png"
    )
    arguments = parser.parse_args()
    rows = [row for run in arguments.runs for row in read_rows(run, arguments.epochs)]
    with arguments.out.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    plot(rows, arguments.out.with_suffix(".png"))
    print(f"{len(rows)} evaluations in {arguments.out}.csv and {arguments.out}.png")


if __name__ == "__main__":
    main()
