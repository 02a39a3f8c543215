"""`phalanx evaluate`: evaluate the checkpoints of a run from another process."""

from __future__ import annotations

import json
import math

import click

from phalanx.cli.option_factories import time_option
from phalanx.cli.trained_model import CheckpointChoice, checkpoint_options, load_experiment


@click.command()
@click.argument("program", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model-dir", metavar="DIR", help="The run's directory.  [default: the program's]")
@click.option("--once", is_flag=True, help="Evaluate one existing checkpoint, and exit.")
@click.option("--skip", is_flag=True, help="Evaluate only the newest checkpoint each time.")
@time_option("--throttle", "The minimum time between the starts of two evaluations.", "0s")
@time_option("--limit", "Exit after this time.")
@time_option("--wait", "Fail after this time without a new checkpoint or heartbeat.", "10m")
@checkpoint_options
def command(
    program: str,
    arguments: tuple[str, ...],
    model_dir: str | None,
    once: bool,
    skip: bool,
    throttle: float,
    limit: float | None,
    wait: float,
    checkpoint: CheckpointChoice,
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
    found = load_experiment(program, arguments, model_dir)
    from phalanx.train.console import show_log  # noqa: PLC0415
    from phalanx.train.loop.checkpoint_evaluator import (  # noqa: PLC0415
        WatchOptions,
        evaluate_checkpoints,
        open_evaluator,
    )
    from phalanx.train.model_dir.layout import step_of  # noqa: PLC0415
    from phalanx.train.runtime.signals import catch_sigterm  # noqa: PLC0415

    show_log()
    directory = str(found.config.model_dir)
    chosen = checkpoint.find(directory)[0] if once else None
    with open_evaluator(found.experiment, found.config) as (evaluate, _), catch_sigterm() as stop:

        def report(path: str) -> dict[str, float]:
            values = evaluate(path)
            shown = {name: v if math.isfinite(v) else None for name, v in values.items()}
            click.echo(json.dumps({"step": step_of(path), **shown}))
            return values

        if chosen is not None:
            report(chosen)
        else:
            evaluate_checkpoints(directory, report, WatchOptions(skip, throttle, limit, wait), stop)
