"""Keep the best model ready for use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.export.saved_model import export, list_versions
from phalanx.train.hooks.base import Hook
from phalanx.train.model_dir.checkpoint_loader import TrainedModel
from phalanx.train.model_dir.layout import checkpoint_name
from phalanx.train.model_dir.metrics_log import MetricsEntry, is_better, read_evaluations

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class BestExporterHook(Hook):
    """Exports the model whenever an evaluation is the best so far, into model_dir/export/best.

        BestExporterHook("accuracy", keep=3)

    It sees the evaluations of the training processes. Where a task of its own evaluates, use
    `phalanx export --checkpoint best`.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        best: Literal["min", "max"] | None = None,
        directory: str | None = None,
        keep: int = 5,
    ) -> None:
        self.metric = metric
        self.best = best
        self.directory = directory
        self.keep = keep
        self._value: float | None = None

    def begin(self, session: Session) -> None:
        """A restart does not forget the best."""
        for evaluation in read_evaluations(session.directory):
            if evaluation.step <= session.step and self.metric in evaluation.values:
                self._improves(evaluation.values[self.metric])

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        """Export what is better than all before."""
        if self.metric not in values:
            raise ConfigurationError(
                f"BestExporterHook looks at {self.metric!r}, but the evaluation has "
                f"{', '.join(sorted(values))}"
            )
        if not self._improves(values[self.metric]):
            return
        session.pull()
        target = self.directory or f"{session.directory}/export/best"
        export(session.experiment, _as_trained(session, values), target)
        for old in list_versions(target)[: -self.keep]:
            tf.io.gfile.rmtree(f"{target}/{old}")

    def _improves(self, value: float) -> bool:
        if self._value is not None and not is_better(value, self._value, self.metric, self.best):
            return False
        self._value = value
        return True


def _as_trained(session: Session, values: Mapping[str, float]) -> TrainedModel:
    model = session.model
    x = None
    if not getattr(model, "inputs", None):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(session.element_spec)
    return TrainedModel(
        model,
        session.step,
        checkpoint=f"{session.directory}/{checkpoint_name(session.step)}",
        input_spec=x,
        variables=tuple(session.variables.values()),
        evaluation=MetricsEntry(session.step, values),
    )
