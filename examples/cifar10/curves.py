"""The evaluations of one or several runs, as a table (CSV) and as a picture (PNG).

    python examples/cifar10/curves.py runs/in-step runs/async --epochs 60 --out curves

writes curves.csv and curves.png. Runs that make different steps meet at their ends: with --epochs,
the last step of each is that many epochs.
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
        raise SystemExit(f"{run} has no evaluations: give the --model-dir of a run")
    # TensorFlow names event files after the second in which they were begun.
    began = min(float(file.name.split(".")[3]) for file in run.glob("events.out.tfevents.*"))
    for found in evaluations:
        epoch = f"{found.step * epochs / evaluations[-1].step:.2f}" if epochs else ""
        values = [f"{found.values[name]:.4f}" for name in COLUMNS[4:]]
        yield [run.name, found.step, epoch, round(found.time - began), *values]


def plot(rows: list[list[object]], out: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 4), layout="constrained")
    place = figure.subplots()
    axis = "epoch" if rows[0][2] else "step"
    for name in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == name]
        across = [float(str(row[COLUMNS.index(axis)])) for row in mine]
        place.plot(across, [100 * float(str(row[4])) for row in mine], "o-", ms=3, label=name)
    place.set_xlabel(axis)
    place.set_ylabel("test accuracy, %")
    place.grid(alpha=0.3)
    place.legend()
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--epochs", type=float, help="what the last step is in epochs")
    parser.add_argument("--out", type=Path, default=Path("curves"), help="without .csv and .png")
    arguments = parser.parse_args()
    rows = [row for run in arguments.runs for row in read_rows(run, arguments.epochs)]
    with arguments.out.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    plot(rows, arguments.out.with_suffix(".png"))
    print(f"{len(rows)} evaluations in {arguments.out}.csv and {arguments.out}.png")


if __name__ == "__main__":
    main()
