"""`phalanx evaluate`, `export` and `predict`: what trained models are used for."""

from __future__ import annotations

import json
import math
import multiprocessing
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from phalanx.cli.option_factories import time_option
from phalanx.cli.printing import echo
from phalanx.cli.progress import show_progress
from phalanx.errors import ConfigurationError
from phalanx.launch.processes.runtime_lines import hide_runtime_lines, import_tensorflow
from phalanx.train.console import show_log
from phalanx.train.model_dir.layout import choose_checkpoints, step_of
from phalanx.train.model_dir.metrics_log import MetricsEntry
from phalanx.train.runtime.signals import catch_sigterm

if TYPE_CHECKING:
    from phalanx.compat.tf1.loader import LoadedEstimator
    from phalanx.train.experiment_loader import LoadedProgram
    from phalanx.train.export.signatures import Signature
    from phalanx.train.loop.checkpoint_evaluator import EvaluateCheckpoint
    from phalanx.train.model_dir.checkpoint_loader import TrainedModel

_REPORT_SECONDS = 5.0

BEST = click.Choice(["min", "max"])
Best = Literal["min", "max"] | None
# From a run's directory to the checkpoints that the options choose, and their evaluations.
FindCheckpoints = Callable[[str], dict[str, MetricsEntry]]


def checkpoint_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --checkpoint, --metric and --best, which the command takes as a FindCheckpoints."""

    @click.option(
        "--checkpoint",
        default="last",
        show_default=True,
        metavar="last|best|STEP",
        help="The checkpoint to load; best is the best of the evaluated ones that still exist.",
    )
    @click.option(
        "--metric",
        default="loss",
        show_default=True,
        metavar="NAME",
        help="The metric that decides which checkpoint is the best.",
    )
    @click.option(
        "--best",
        type=BEST,
        help="Whether the lowest or the highest value is best.  [default: by the metric's name]",
    )
    @wraps(function)
    def command(*, checkpoint: str, metric: str, best: Best, **values: object) -> None:
        find = partial(choose_checkpoints, which=checkpoint, metric=metric, best=best)
        function(find_checkpoints=find, **values)

    return command


def load_experiment(path: str, arguments: Sequence[str], model_dir: str | None) -> LoadedProgram:
    """Return the program's experiment and its config, in which --model-dir takes precedence."""
    import_tensorflow()
    from phalanx.train.experiment_loader import load_program  # noqa: PLC0415

    program = load_program(path, arguments)
    directory = model_dir or program.config.model_dir
    if not directory:
        fix = "name the directory of its run with --model-dir"
        raise ConfigurationError(f"{path} sets no model_dir: {fix}")
    return replace(program, config=program.config.replace(model_dir=directory))


def load_model(
    path: str, arguments: Sequence[str], model_dir: str | None, find_checkpoints: FindCheckpoints
) -> tuple[LoadedProgram, TrainedModel]:
    program = load_experiment(path, arguments, model_dir)
    from phalanx.train.model_dir.checkpoint_loader import load_trained  # noqa: PLC0415
    from phalanx.train.model_dir.intact import load_first  # noqa: PLC0415

    evaluations = find_checkpoints(str(program.config.model_dir))
    load = partial(load_trained, program.experiment, program.config)
    found, trained = load_first(evaluations, load)
    return program, replace(trained, evaluation=evaluations[found])


def tf1_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add --tf1."""
    text = "PROGRAM is for TensorFlow 1, and trains an Estimator."
    return click.option("--tf1", is_flag=True, help=text)(function)


def load_estimator(path: str, arguments: Sequence[str], model_dir: str | None) -> LoadedEstimator:
    """Return the estimator of a TensorFlow 1 program, in which --model-dir takes precedence."""
    with hide_runtime_lines():
        from phalanx.compat.tf1 import loader  # noqa: PLC0415

    return loader.load_estimator(path, arguments, model_dir)


@click.command()
@click.argument("program", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model-dir", metavar="DIR", help="The run's directory.  [default: the program's]")
@click.option("--once", is_flag=True, help="Evaluate one existing checkpoint, and exit.")
@click.option("--skip", is_flag=True, help="Evaluate only the newest checkpoint each time.")
@time_option("--throttle", "The minimum time between the starts of two evaluations.", "0s")
@time_option("--limit", "Exit after this time.")
@time_option("--wait", "Fail after this time without a new checkpoint or heartbeat.", "10m")
@tf1_option
@checkpoint_options
def evaluate(
    program: str,
    arguments: tuple[str, ...],
    model_dir: str | None,
    tf1: bool,
    once: bool,
    skip: bool,
    throttle: float,
    limit: float | None,
    wait: float,
    find_checkpoints: FindCheckpoints,
) -> None:
    """Evaluate each checkpoint that the run of PROGRAM saves, until the run ends.

    Any machine that can read the run's directory can run this command. Each result is a JSON line
    on standard output, a line of DIR/eval/eval.jsonl, and a point of a TensorBoard curve. With
    --once, evaluate only the last checkpoint, or the one that --checkpoint names.

    \b
    Example:
      phalanx evaluate train.py --model-dir runs/digits --throttle 1m
      phalanx evaluate train.py --model-dir runs/digits -- --layers 20   # flags of the program
      phalanx evaluate train.py --model-dir runs/digits --once --checkpoint best
    """
    opened: AbstractContextManager[EvaluateCheckpoint]
    if tf1:
        estimator = load_estimator(program, arguments, model_dir)
        directory, opened = estimator.model_dir, nullcontext(estimator.evaluate)
    else:
        found = load_experiment(program, arguments, model_dir)
        directory, opened = str(found.config.model_dir), _open_evaluator(found)
    from phalanx.train.loop import checkpoint_evaluator  # noqa: PLC0415
    from phalanx.train.model_dir.intact import load_first  # noqa: PLC0415

    show_log()
    chosen = find_checkpoints(directory) if once else None
    with opened as evaluate, catch_sigterm() as stop:

        def report(path: str) -> dict[str, float]:
            values = evaluate(path)
            shown = {name: v if math.isfinite(v) else None for name, v in values.items()}
            echo(json.dumps({"step": step_of(path), **shown}))
            return values

        if chosen is not None:
            load_first(chosen, report)
        else:
            options = checkpoint_evaluator.WatchOptions(skip, throttle, limit, wait)
            checkpoint_evaluator.evaluate_checkpoints(directory, report, options, stop)


@contextmanager
def _open_evaluator(program: LoadedProgram) -> Iterator[EvaluateCheckpoint]:
    from phalanx.train.loop.checkpoint_evaluator import open_evaluator  # noqa: PLC0415

    with open_evaluator(program.experiment, program.config) as (evaluate, _):
        yield evaluate


@click.command()
@click.argument("program", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model-dir", metavar="DIR", help="The run's directory.  [default: the program's]")
@click.option("--out", required=True, metavar="DIR", help="The directory of the model's versions.")
@click.option(
    "--version",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of the new version.  [default: the next]",
)
@tf1_option
@checkpoint_options
def export(
    program: str,
    arguments: tuple[str, ...],
    model_dir: str | None,
    tf1: bool,
    out: str,
    version: int | None,
    find_checkpoints: FindCheckpoints,
) -> None:
    """Export the model that PROGRAM trained as a SavedModel into DIR/VERSION.

    PROGRAM runs up to its call of phalanx.run, with ARGUMENTS (after --) as its flags, and trains
    nothing. The SavedModel has two signatures: serving_default takes the model's inputs, and
    serving_examples takes serialized Examples, to which it applies the experiment's preprocessing.
    The command prints the path of the new version.

    With --tf1, PROGRAM runs up to its training, and the SavedModel has the signatures of its
    exporters, or takes the features of its input_fn.

    \b
    Example:
      phalanx export train.py --model-dir runs/digits --checkpoint best --out models/digits
      phalanx serve models/digits
    """
    if tf1:
        estimator = load_estimator(program, arguments, model_dir)
        from phalanx.train.export.saved_model import add_version  # noqa: PLC0415
        from phalanx.train.model_dir.intact import load_first  # noqa: PLC0415

        def write(path: str) -> str:
            return add_version(
                out.rstrip("/"), version, lambda folder: estimator.export(folder, path)
            )

        echo(load_first(find_checkpoints(estimator.model_dir), write)[1])
        return
    found, trained_model = load_model(program, arguments, model_dir, find_checkpoints)
    from phalanx.train.export.saved_model import export  # noqa: PLC0415

    echo(export(found.experiment, trained_model, out.rstrip("/"), version))


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
@tf1_option
@checkpoint_options
def predict(
    model: str,
    files: tuple[str, ...],
    model_dir: str | None,
    program_flags: str,
    out: str,
    batch_size: int,
    raw_pixels: bool,
    tf1: bool,
    find_checkpoints: FindCheckpoints,
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
    import_tensorflow()
    flags = _split(program_flags)
    if tf1 and not Path(model).is_dir():
        signatures = _export_and_load(model, flags, model_dir, find_checkpoints)
    else:
        signatures = _load_signatures(model, flags, model_dir, find_checkpoints)
    from phalanx.serving.inputs import count_rows, read_batches  # noqa: PLC0415
    from phalanx.serving.predictions import open_writer, predict  # noqa: PLC0415

    batches = read_batches(files, signatures, batch_size, raw_pixels)
    with _show_rows(count_rows(files)) as notify, open_writer(out, sys.stdout) as writer:
        rows = predict(signatures, batches, writer, notify)
    if out != "-":
        echo(f"{rows} predictions in {out}", err=True)


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise click.BadParameter(f"{flags!r}: {error}", param_hint="--program-flags") from None


def _load_signatures(
    model: str, flags: list[str], model_dir: str | None, find_checkpoints: FindCheckpoints
) -> dict[str, Signature]:
    from phalanx.train.export import saved_model, signatures  # noqa: PLC0415

    if Path(model).is_dir():
        return signatures.load_signatures(saved_model.find_version(model)[0])
    program, trained = load_model(model, flags, model_dir, find_checkpoints)
    servable = signatures.make_servable(program.experiment, trained.model, trained.input_spec)
    return signatures.trace_signatures(servable)


def _export_and_load(
    program: str, flags: list[str], model_dir: str | None, find_checkpoints: FindCheckpoints
) -> dict[str, Signature]:
    """Export the model of a TensorFlow 1 program, and load it.

    The export is made in another process, in which TensorFlow behaves as version 1.
    """
    from phalanx.train.export import signatures  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory(prefix="phalanx-export-") as folder,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        given = (program, flags, model_dir, find_checkpoints, folder)
        return signatures.load_signatures(pool.submit(_export_estimator, *given).result())


def _export_estimator(
    program: str,
    flags: list[str],
    model_dir: str | None,
    find_checkpoints: FindCheckpoints,
    directory: str,
) -> str:
    estimator = load_estimator(program, flags, model_dir)
    from phalanx.train.model_dir.intact import load_first  # noqa: PLC0415

    found = find_checkpoints(estimator.model_dir)
    return load_first(found, partial(estimator.export, directory))[1]


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
            echo(f"{rows}{f' of {total}' if total else ''} rows predicted", err=True)

    yield notify
