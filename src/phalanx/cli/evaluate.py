"""`phalanx evaluate`: evaluate the checkpoints of a run, from outside."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from phalanx.cli.options import DURATION
from phalanx.cli.trained_program import checkpoint_options, open_program


@click.command()
@click.argument("program", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model-dir", metavar="DIR", help="Where it trains.  [default: the program's own]")
@click.option("--once", is_flag=True, help="Evaluate one checkpoint that is there, and end.")
@click.option("--skip", is_flag=True, help="Skip to the newest checkpoint each time.")
@click.option(
    "--throttle",
    type=DURATION,
    default="0s",
    show_default=True,
    metavar="TIME",
    help="At least so long from one evaluation to the next.",
)
@click.option("--limit", type=DURATION, metavar="TIME", help="End after so long.")
@click.option(
    "--wait",
    type=DURATION,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Give up when nothing is heard of the run for so long.",
)
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
    checkpoint: str,
    metric: str,
    best: Any,
) -> None:
    """Follow the run of PROGRAM, and evaluate each checkpoint that is kept, until it is done.

    It may run anywhere that sees the run's directory. Each result is a JSON line on standard
    output, a line of DIR/eval/eval.jsonl, and a point of TensorBoard's curves. With --once it
    evaluates the last checkpoint, or the one that --checkpoint names.

    \b
    Example:
      phalanx evaluate train.py --model-dir runs/digits --throttle 1m
      phalanx evaluate train.py --model-dir runs/digits -- --layers 20   # flags of the program
      phalanx evaluate train.py --model-dir runs/digits --once --checkpoint best
    """
    found = open_program(program, arguments, model_dir)
    from phalanx.train.console import show_log  # noqa: PLC0415
    from phalanx.train.loop.checkpoint_evaluator import Follow, evaluator, follow, step_of  # noqa: PLC0415
    from phalanx.train.model_dir.checkpoint_loader import choose_checkpoint  # noqa: PLC0415
    from phalanx.train.runtime.signals import catch_sigterm  # noqa: PLC0415

    show_log()
    directory = str(found.config.model_dir)
    chosen = None
    if once:
        wanted = f"model.ckpt-{checkpoint}" if checkpoint.isdecimal() else checkpoint
        chosen, _ = choose_checkpoint(directory, wanted, metric, best)
    with evaluator(found.experiment, found.config) as (evaluate, _), catch_sigterm() as stop:

        def report(path: str) -> dict[str, float]:
            values = evaluate(path)
            shown = {name: v if math.isfinite(v) else None for name, v in values.items()}
            click.echo(json.dumps({"step": step_of(path), **shown}))
            return values

        if chosen is not None:
            report(chosen)
        else:
            follow(directory, report, Follow(skip, throttle, limit, wait), stop)
