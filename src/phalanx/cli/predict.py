"""`phalanx predict`: predict the rows of files."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli.progress import show_progress
from phalanx.cli.trained_model import (
    CheckpointChoice,
    checkpoint_options,
    load_model,
    silence_tensorflow,
)

if TYPE_CHECKING:
    from phalanx.train.export.signatures import Signature

_REPORT_SECONDS = 5.0


@click.command()
@click.argument("model")
@click.argument("files", nargs=-1, required=True)
@click.option("--model-dir", metavar="DIR", help="The run's directory.  [default: the program's]")
@click.option(
    "--program-flags",
    default="",
    metavar="TEXT",
    help="The flags of the program, as one argument: '--data-dir data --num-layers 20'.",
)
@click.option(
    "--out",
    default="-",
    metavar="FILE",
    help="A .jsonl or .parquet file.  [default: JSON lines on standard output]",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--raw-pixels", is_flag=True, help="Pass pixels as 0 to 255 instead of 0 to 1.")
@checkpoint_options
def command(
    model: str,
    files: tuple[str, ...],
    model_dir: str | None,
    program_flags: str,
    out: str,
    batch_size: int,
    raw_pixels: bool,
    checkpoint: CheckpointChoice,
) -> None:
    """Predict each row of FILES with MODEL, in order.

    MODEL is a program with its --model-dir, or a directory that `phalanx export` wrote. FILES are
    TFRecords of Examples, CSV files with a header, JSON lines, or images, which are resized to the
    model's input. Each input needs a column or key of its name. A model with one input also takes
    all columns as one vector, and JSON lines that are plain values.

    \b
    Example:
      phalanx predict train.py --model-dir runs/digits --checkpoint best digits/*.png
      phalanx predict models/digits test.tfrecord --out predictions.parquet
    """
    silence_tensorflow()
    signatures = _load_signatures(model, _split(program_flags), model_dir, checkpoint)
    from phalanx.serving.inputs import count_rows, read_batches  # noqa: PLC0415
    from phalanx.serving.predictions import open_writer, predict  # noqa: PLC0415

    batches = read_batches(files, signatures, batch_size, raw_pixels)
    with _show_rows(count_rows(files)) as notify, open_writer(out, sys.stdout) as writer:
        rows = predict(signatures, batches, writer, notify)
    if out != "-":
        click.echo(f"{rows} predictions in {out}", err=True)


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise click.BadParameter(f"{flags!r}: {error}", param_hint="--program-flags") from None


def _load_signatures(
    model: str, flags: list[str], model_dir: str | None, checkpoint: CheckpointChoice
) -> dict[str, Signature]:
    from phalanx.train.export.signatures import load_signatures, make_servable, trace_signatures  # noqa: PLC0415

    if Path(model).is_dir():
        from phalanx.train.export.saved_model import find_version  # noqa: PLC0415

        return load_signatures(find_version(model)[0])
    program, trained = load_model(model, flags, model_dir, checkpoint)
    return trace_signatures(make_servable(program.experiment, trained.model, trained.input_spec))


@contextmanager
def _show_rows(total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; otherwise print a line every few seconds."""
    with show_progress("predicting", total) as update:
        if update is not None:
            yield lambda rows: update(completed=rows)
            return
    last = time.monotonic()

    def notify(rows: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_SECONDS:
            last = time.monotonic()
            click.echo(f"{rows}{f' of {total}' if total else ''} rows predicted", err=True)

    yield notify
