"""Loads the estimator of a TensorFlow 1 program without training it."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.compat.tf1.program import run
from phalanx.compat.tf1.search import Found, SearchEnded, searching
from phalanx.errors import ConfigurationError

_INPUT = "inputs"


@dataclass(frozen=True)
class LoadedEstimator:
    """An estimator, and what its program does with it."""

    path: str
    found: Found

    @property
    def model_dir(self) -> str:
        """The directory of its checkpoints."""
        return str(self.found.estimator.model_dir)

    def evaluate(self, checkpoint: str) -> dict[str, float]:
        """Evaluate a checkpoint as the program does, and return the metrics that are numbers."""
        from phalanx.compat.tf1.estimator.graph_hooks import list_numbers  # noqa: PLC0415

        if self.found.evaluate is None:
            raise ConfigurationError(
                f"{self.path} evaluates nothing: let it call Estimator.evaluate, "
                "tf.estimator.train_and_evaluate or learn_runner.run"
            )
        return list_numbers(self.found.evaluate(checkpoint))

    def export(self, directory: str, checkpoint: str) -> str:
        """Write a SavedModel below a directory, and return its path.

        Without an exporter in the program, requests have the features of its input_fn.
        """
        if self.found.export is not None:
            return os.fsdecode(self.found.export(directory, checkpoint))
        receiver_fn = self._make_receiver_fn()
        written = self.found.estimator.export_saved_model(
            directory, receiver_fn, checkpoint_path=checkpoint
        )
        return os.fsdecode(written)

    def _make_receiver_fn(self) -> Any:
        import tensorflow.compat.v1 as tf  # noqa: PLC0415

        from phalanx.compat.tf1.estimator.export import (  # noqa: PLC0415
            build_raw_serving_input_receiver_fn,
            build_tensor_serving_input_receiver_fn,
        )
        from phalanx.compat.tf1.estimator.inputs import call_input_fn  # noqa: PLC0415
        from phalanx.compat.tf1.estimator.specs import ModeKeys  # noqa: PLC0415

        estimator, input_fn = self.found.estimator, self.found.input_fn
        if input_fn is None:
            raise ConfigurationError(
                f"{self.path} says nothing of the model's inputs: let it call Estimator.train or "
                "Estimator.export_saved_model"
            )
        with tf.Graph().as_default():
            read = call_input_fn(input_fn, ModeKeys.EVAL, estimator.params, estimator.config)
            if isinstance(read.features, Mapping):
                return build_raw_serving_input_receiver_fn(read.features)
            return build_tensor_serving_input_receiver_fn(read.features, _INPUT)


def load_estimator(
    path: str, arguments: Sequence[str] = (), model_dir: str | None = None
) -> LoadedEstimator:
    """Return the estimator that a program trains. The program runs up to its training.

    Args:
        path: The program.
        arguments: Its flags.
        model_dir: The directory of its checkpoints, if it is not the one that the program sets.

    Raises:
        ConfigurationError: The program trains no estimator.
    """
    # The command is not a task of a cluster, whatever the shell has been used for.
    os.environ.pop("TF_CONFIG", None)
    # Standard output is for the results of the command.
    with searching() as found, contextlib.redirect_stdout(sys.stderr):
        try:
            run([path, *arguments])
        except SearchEnded:
            pass
        except SystemExit as end:
            if found.estimator is None and end.code not in (None, 0):
                raise ConfigurationError(
                    f"{path} ended with {end.code!r} before it trained an estimator: give it the "
                    "flags it needs, after -- or (to predict) in --program-flags"
                ) from None
        except Exception:
            # After its training was left out, a program may fail on the results.
            if found.estimator is None:
                raise
    if found.estimator is None:
        raise ConfigurationError(
            f"{path} trains no estimator: the command needs a program with tf.estimator or "
            "tf.contrib.learn"
        )
    if model_dir is not None:
        found.estimator.move(model_dir)
    return LoadedEstimator(path, found)
