"""What the user wrote: the values that a training or evaluation step has for a batch."""

import inspect

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.autograph import call_converted, unconverted
from phalanx.train.experiment import Experiment, experiment_name, is_written
from phalanx.train.step.metric_sums import list_metrics
from phalanx.train.step.model_step import find_model_step, label_values
from phalanx.train.step.report_values import mean_over_batch
from phalanx.train.types import Batch, Loss, Metric, Model, StepValues, Tensor


class UserStep:
    """The step of an experiment, of its model, or the one that follows from a loss.

    Attributes:
        is_compiled: Whether the model has a loss by itself.
        train_step: A `train_step` that the model overrides.
        test_step: A `test_step` that it overrides.
        metrics: The metrics of the experiment, beside those of the compiled model.
    """

    def __init__(self, experiment: Experiment, model: Model) -> None:
        self._experiment = experiment
        self._model = model
        is_keras = isinstance(model, keras.Model)
        self.is_compiled = is_keras and bool(model.compiled) and not is_written(experiment, "loss")
        self.train_step = find_model_step(experiment, model, "train_step", "train_step")
        self.test_step = find_model_step(experiment, model, "test_step", "eval_step")
        self.metrics = _make_metrics(experiment)
        self._loss = None if self.is_compiled else _make_loss(experiment)

    def all_metrics(self) -> list[Metric]:
        """Return the metrics of the model and of the experiment."""
        return list_metrics([*(self._model.metrics if self.is_compiled else []), *self.metrics])

    def compute_metrics(self) -> dict[str, Tensor]:
        """Return the results of all metrics, as their variables are."""
        results = dict(self._model.get_metrics_result()) if self.is_compiled else {}
        return results | {metric.name: metric.result() for metric in self.metrics}

    @unconverted
    def train(self, batch: Batch) -> dict[str, Tensor]:
        """Return the values of a training step, each a mean, or one number per example."""
        if is_written(self._experiment, "train_step"):
            return self._call_train_step(batch)
        if self.train_step is not None:
            return label_values(self.train_step, self.train_step.build(batch))
        return self._call_model(batch, training=True)

    @unconverted
    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        """Return the values of an evaluation step."""
        if is_written(self._experiment, "eval_step"):
            values = call_converted(self._experiment.eval_step, self._model, batch)
            return _as_values(values, "eval_step")
        if self.test_step is not None:
            return label_values(self.test_step, self.test_step.build(batch))
        if not self.is_compiled and self._loss is None:
            return self._call_train_step(batch)
        return self._call_model(batch, training=False)

    def _call_train_step(self, batch: Batch) -> dict[str, Tensor]:
        values = call_converted(self._experiment.train_step, self._model, batch)
        return _as_values(values, "train_step")

    def _call_model(self, batch: Batch, training: bool) -> dict[str, Tensor]:
        """Return the loss, and update the metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = _forward(self._model, x, training)
        if self.is_compiled:
            # What `fit` calls: a `compute_loss` of the user may take no `training`.
            loss = call_converted(
                self._model._compute_loss,
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training,
            )  # fmt: skip
            _check_is_number(loss, self._model)
            call_converted(self._model.compute_metrics, x, y, y_pred, sample_weight=sample_weight)
        elif self._loss is None:
            raise ConfigurationError(
                f"{experiment_name(self._experiment)} has no loss: write loss(y_true, y_pred) or "
                "train_step(model, batch), or compile the model"
            )
        else:
            loss = self._compute_loss(batch, y, y_pred, sample_weight)
        for metric in self.metrics:
            call_converted(metric.update_state, y, y_pred, sample_weight=sample_weight)
        return {"loss": loss}

    def _compute_loss(
        self, batch: Batch, y: Batch, y_pred: Tensor, sample_weight: Tensor | None
    ) -> Tensor:
        """Return the loss that the experiment writes, with what layers add to it."""
        assert self._loss is not None
        if isinstance(self._loss, keras.losses.Loss):
            loss = call_converted(self._loss, y, y_pred, sample_weight=sample_weight)
        else:
            loss = call_converted(self._loss, y, y_pred)
            loss = mean_over_batch(loss, batch, "loss", sample_weight)
        penalties = getattr(self._model, "losses", [])
        return loss + tf.add_n(penalties) if penalties else loss


def _forward(model: Model, x: Batch, training: bool) -> Tensor:
    if isinstance(model, keras.Model):
        return call_converted(model, x, training=training)
    if "training" in inspect.signature(model.__call__).parameters:
        return call_converted(model, x, training=training)
    return call_converted(model, x)


def _check_is_number(loss: Tensor | None, model: Model) -> None:
    shape = tf.TensorShape([]) if loss is None else tf.convert_to_tensor(loss).shape
    # Keras does not reduce the loss of a part of a batch that has no examples.
    if shape.rank is not None and shape not in ([], [0]):
        raise ConfigurationError(
            f"the loss of {model.name} has the shape {tuple(shape)}, and Keras would train "
            "with its sum, which depends on the size of the batch: return one number from "
            "compute_loss, and set a reduction of the loss, such as sum_over_batch_size"
        )


def _make_loss(experiment: Experiment) -> Loss | None:
    if not is_written(experiment, "loss"):
        return None
    loss: Loss = experiment.loss
    return keras.losses.get(loss) if isinstance(loss, str) else loss


def _make_metrics(experiment: Experiment) -> list[Metric]:
    metrics: Metric = experiment.metrics
    if callable(metrics):
        metrics = metrics()
    return [keras.metrics.get(m) if isinstance(m, str) else m for m in metrics]


def _as_values(returned: StepValues, function: str) -> dict[str, Tensor]:
    if not isinstance(returned, dict):
        returned = {"loss": returned}
    if returned.get("loss") is None:
        raise ConfigurationError(
            f"{function} returned {sorted(returned)}: return the loss, or a dict with the key "
            '"loss"'
        )
    return dict(returned)
