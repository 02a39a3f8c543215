"""Hooks that save, load, evaluate and export the model."""

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.export.saved_model import export, list_versions
from phalanx.train.hooks.base import Hook, PeriodicHook, read_metric
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.checkpoint_loader import TrainedModel
from phalanx.train.model_dir.layout import checkpoint_name
from phalanx.train.model_dir.metrics_log import MetricsEntry, is_better, read_evaluations
from phalanx.train.model_dir.warm_start import warm_start


class CheckpointHook(PeriodicHook):
    """Saves a checkpoint whenever `when` is due, at step 0, and at the end of the run."""

    def begin(self, session: Session) -> None:
        super().begin(session)
        # An evaluator compares later checkpoints with the untrained model.
        if session.step == 0:
            session.save()

    def act(self, session: Session) -> None:
        session.save()

    def end(self, session: Session) -> None:
        session.save()


class LoadCheckpoint(Hook):
    """Warm start: loads weights from another checkpoint when a run starts at step 0.

        LoadCheckpoint("runs/old")                        # all weights of the last checkpoint
        LoadCheckpoint("old.keras", prefix="encoder/")    # only weights with this prefix
        LoadCheckpoint("tf1/model.ckpt-9", names={"dense/kernel": "fc1/weights"})

    It reads checkpoints of Phalanx and of TensorFlow 1 and 2, and `.keras` and `.weights.h5` files.
    A weight that is missing or has another shape is an error that names the weight. A run that is
    restored from its own checkpoint does not load anything.

    Args:
        path: A checkpoint, a file, or the directory of a run.
        checkpoint: Not used: TensorLayer's hook for graphs has it.
        prefix: Load only the weights whose names start with this prefix.
        names: Maps names of the model to names of the checkpoint. If both end with `/`, they map
            all names that start with them.

    Raises:
        ConfigurationError: If the arguments are those of TensorLayer's hook for graphs.
    """

    def __init__(
        self,
        path: str,
        checkpoint: str | None = None,
        *,
        prefix: str = "",
        names: Mapping[str, str] | None = None,
    ) -> None:
        if checkpoint is not None or not isinstance(path, str | os.PathLike):
            raise ConfigurationError(
                "LoadCheckpoint(saver, checkpoint) is for TensorFlow 1 graphs: import it from "
                "phalanx.compat.tf1.distributed, or give LoadCheckpoint of phalanx.hooks the "
                "checkpoint alone"
            )
        self.path = str(path)
        self.prefix = prefix
        self.names = names

    def on_restore(self, session: Session) -> None:
        if not session.is_restored:
            warm_start(session.variables, session.model, self.path, self.prefix, self.names)


class EvaluationHook(PeriodicHook):
    """Evaluates in the training processes whenever `when` is due, and at the end of the run.

    It is for runs without an evaluator task.
    """

    def act(self, session: Session) -> None:
        session.evaluate()

    def end(self, session: Session) -> None:
        if session.evaluated_step != session.step and not session.is_interrupted:
            session.evaluate()


@dataclass(eq=False)
class BestExporterHook(Hook):
    """Exports the model whenever an evaluation is the best so far.

        BestExporterHook("accuracy", keep=3)

    The hook sees the evaluations of the training processes only. If an evaluator task evaluates,
    use `phalanx export --checkpoint best`.

    Args:
        metric: The metric to compare.
        best: Whether the lowest ("min") or the highest ("max") value is the best. By default, the
            name of the metric decides.
        directory: Where to export to. By default `export/best` in model_dir.
        keep: How many exported models to keep.
    """

    metric: str = "loss"
    _: KW_ONLY
    best: Literal["min", "max"] | None = None
    directory: str | None = None
    keep: int = 5
    _best_value: float | None = field(default=None, init=False, repr=False)

    def begin(self, session: Session) -> None:
        # After a restart, the evaluations before it still count.
        for evaluation in read_evaluations(session.directory):
            if evaluation.step <= session.step and self.metric in evaluation.values:
                self._update_best(evaluation.values[self.metric])

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        if not self._update_best(read_metric(self, self.metric, values)):
            return
        assert session.experiment is not None  # A loop that the user writes does not evaluate.
        session.pull()
        target = self.directory or f"{session.directory}/export/best"
        export(session.experiment, _make_trained_model(session, values), target)
        for old in list_versions(target)[: -self.keep]:
            tf.io.gfile.rmtree(f"{target}/{old}")

    def _update_best(self, value: float) -> bool:
        old = self._best_value
        improves = old is None or is_better(value, old, self.metric, self.best)
        if improves:
            self._best_value = value
        return improves


def _make_trained_model(session: Session, values: Mapping[str, float]) -> TrainedModel:
    input_spec = None
    if not getattr(session.model, "inputs", None):
        input_spec, _, _ = keras.utils.unpack_x_y_sample_weight(session.element_spec)
    return TrainedModel(
        session.model,
        session.step,
        checkpoint=f"{session.directory}/{checkpoint_name(session.step)}",
        input_spec=input_spec,
        variables=tuple(session.variables.values()),
        evaluation=MetricsEntry(session.step, values),
    )
