"""What the commands that work on a trained program share: PROGRAM, --model-dir, --checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from phalanx.errors import ConfigurationError

if TYPE_CHECKING:
    from phalanx.train.experiment_loader import LoadedProgram
    from phalanx.train.model_dir.checkpoint_loader import TrainedModel

Function = TypeVar("Function", bound=Callable[..., Any])


def checkpoint_options(function: Function) -> Function:
    """--checkpoint, --metric and --best."""
    for option in (
        click.option(
            "--best",
            type=click.Choice(["min", "max"]),
            help="Whether the best metric is the least or the most.  [default: by its name]",
        ),
        click.option(
            "--metric",
            default="loss",
            show_default=True,
            metavar="NAME",
            help="What makes a checkpoint the best.",
        ),
        click.option(
            "--checkpoint",
            default="last",
            show_default=True,
            metavar="last|best|STEP",
            help="Which checkpoint; the best is the best evaluated of those that are kept.",
        ),
    ):
        function = option(function)
    return function


def open_program(path: str, arguments: Sequence[str], model_dir: str | None) -> LoadedProgram:
    """The program's experiment, and its config with the model_dir that counts."""
    silence_tensorflow()
    from phalanx.train.experiment_loader import LoadedProgram, load_program  # noqa: PLC0415

    program = load_program(path, arguments)
    directory = model_dir or program.config.model_dir
    if not directory:
        raise ConfigurationError(
            f"{path} names no model_dir: say where it trained with --model-dir"
        )
    return LoadedProgram(program.experiment, program.config.replace(model_dir=directory))


def open_trained(
    path: str,
    arguments: Sequence[str],
    model_dir: str | None,
    checkpoint: str,
    metric: str,
    best: Any,
) -> tuple[LoadedProgram, TrainedModel]:
    """The program and its model with the weights of one checkpoint."""
    program = open_program(path, arguments, model_dir)
    from dataclasses import replace  # noqa: PLC0415

    from phalanx.train.model_dir.checkpoint_loader import choose_checkpoint, load_trained  # noqa: PLC0415

    directory = str(program.config.model_dir)
    if checkpoint.isdecimal():
        checkpoint = f"model.ckpt-{checkpoint}"
    found, evaluation = choose_checkpoint(directory, checkpoint, metric, best)
    trained = load_trained(program.experiment, program.config, found)
    return program, replace(trained, evaluation=evaluation)


def silence_tensorflow() -> None:
    """Leave out what TensorFlow says when it is loaded; its errors stay."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
