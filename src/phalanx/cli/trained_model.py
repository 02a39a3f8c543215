"""What commands share that load the model of a program: --checkpoint, --metric and --best."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Literal

import click

from phalanx.errors import ConfigurationError

if TYPE_CHECKING:
    from phalanx.train.experiment_loader import LoadedProgram
    from phalanx.train.model_dir.checkpoint_loader import TrainedModel
    from phalanx.train.model_dir.metrics_log import MetricsEntry

BEST = click.Choice(["min", "max"])


@dataclass(frozen=True)
class CheckpointChoice:
    """Which checkpoint of a run to load, as the options say."""

    which: str
    metric: str
    best: Literal["min", "max"] | None

    def find(self, model_dir: str) -> tuple[str, MetricsEntry]:
        """Return the path of the checkpoint, and its evaluation."""
        from phalanx.train.model_dir.layout import choose_checkpoint  # noqa: PLC0415

        return choose_checkpoint(model_dir, self.which, self.metric, self.best)


def checkpoint_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --checkpoint, --metric and --best, which the command takes as a CheckpointChoice."""

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
    def command(
        *, checkpoint: str, metric: str, best: Literal["min", "max"] | None, **values: object
    ) -> None:
        function(checkpoint=CheckpointChoice(checkpoint, metric, best), **values)

    return command


def load_experiment(path: str, arguments: Sequence[str], model_dir: str | None) -> LoadedProgram:
    """Return the program's experiment and its config, in which --model-dir takes precedence."""
    silence_tensorflow()
    from phalanx.train.experiment_loader import load_program  # noqa: PLC0415

    program = load_program(path, arguments)
    directory = model_dir or program.config.model_dir
    if not directory:
        raise ConfigurationError(
            f"{path} sets no model_dir: name the directory of its run with --model-dir"
        )
    return replace(program, config=program.config.replace(model_dir=directory))


def load_model(
    path: str, arguments: Sequence[str], model_dir: str | None, checkpoint: CheckpointChoice
) -> tuple[LoadedProgram, TrainedModel]:
    """Return the program, and its model with the weights of the checkpoint."""
    program = load_experiment(path, arguments, model_dir)
    from phalanx.train.model_dir.checkpoint_loader import load_trained  # noqa: PLC0415

    found, evaluation = checkpoint.find(str(program.config.model_dir))
    trained = load_trained(program.experiment, program.config, found)
    return program, replace(trained, evaluation=evaluation)


def silence_tensorflow() -> None:
    """Suppress the messages of TensorFlow except its errors; call it before TensorFlow loads."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
