"""`phalanx predict`: predictions for files."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from phalanx.cli.trained_program import checkpoint_options, open_trained, silence_tensorflow


@click.command()
@click.argument("model")
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--model-dir", metavar="DIR", help="Where the program trained.  [default: the program's own]"
)
@click.option(
    "--program-flags",
    default="",
    metavar="TEXT",
    help="The program's own flags, in one text: '--data-dir data --num-layers 20'.",
)
@click.option(
    "--out",
    default="-",
    metavar="FILE",
    help="A .jsonl or .parquet file.  [default: JSON lines on standard output]",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--raw-pixels", is_flag=True, help="Pictures' numbers are 0 to 255, not 0 to 1.")
@checkpoint_options
def command(
    model: str,
    files: tuple[str, ...],
    model_dir: str | None,
    program_flags: str,
    out: str,
    batch_size: int,
    raw_pixels: bool,
    checkpoint: str,
    metric: str,
    best: str | None,
) -> None:
    """Predict each row of FILES with MODEL, in order.

    MODEL is a program with its --model-dir, or a directory that `phalanx export` wrote. FILES are
    TFRecords of Examples, CSV files with a header, JSON lines, or pictures, which are resized to
    the model's input. Give a column or key for each input; a model with one input takes all columns
    as one vector, and lines that are bare values.

    \b
    Example:
      phalanx predict train.py --model-dir runs/digits --checkpoint best digits/*.png
      phalanx predict models/digits test.tfrecord --out predictions.parquet
    """
    silence_tensorflow()
    signatures = _open_signatures(model, _split(program_flags), model_dir, checkpoint, metric, best)
    from phalanx.serving.inputs import count_rows, read_batches  # noqa: PLC0415
    from phalanx.serving.predictions import open_writer, predict  # noqa: PLC0415

    batches = read_batches(files, signatures, batch_size, raw_pixels)
    with _progress(count_rows(files)) as notify, open_writer(out, sys.stdout) as writer:
        rows = predict(signatures, batches, writer, notify)
    if out != "-":
        click.echo(f"{rows} predictions in {out}", err=True)


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise click.BadParameter(f"{flags!r}: {error}", param_hint="--program-flags") from None


def _open_signatures(
    model: str,
    flags: list[str],
    model_dir: str | None,
    checkpoint: str,
    metric: str,
    best: str | None,
) -> Any:
    from phalanx.train.export.signatures import load_signatures, make_servable, trace_signatures  # noqa: PLC0415

    if Path(model).is_dir():
        from phalanx.train.export.saved_model import find_version  # noqa: PLC0415

        return load_signatures(find_version(model)[0])
    program, trained = open_trained(model, flags, model_dir, checkpoint, metric, best)
    return trace_signatures(make_servable(program.experiment, trained.model, trained.input_spec))


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar for a terminal, a line each few seconds for a file."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import Progress  # noqa: PLC0415

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("predicting", total=total)
            yield lambda rows: bar.update(task, completed=rows)
        return
    last = time.monotonic()

    def notify(rows: int) -> None:
        nonlocal last
        if time.monotonic() - last >= 5:
            last = time.monotonic()
            click.echo(f"{rows}{f' of {total}' if total else ''} rows predicted", err=True)

    yield notify
