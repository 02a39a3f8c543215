"""The user's step as a pure function: (weights, state, batch) -> (gradients, new state, report)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, PhalanxError
from phalanx.train.context import Context
from phalanx.train.experiment import (
    Experiment,
    call,
    experiment_name,
    is_written,
    make_optimizer,
)
from phalanx.train.step.modules import adopt
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.flat_layout import Tensor
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.sparse_tables import merge_rows

Report = np.ndarray[Any, Any]

# How Keras begins when a layer or model is given what it was not made for.
_MISFIT = re.compile(
    r"^.*(is incompatible with the layer|Invalid input shape|doesn't match the expected).*$", re.M
)


class StepFunction:
    """An experiment's model, and what one step does with it.

    A step changes no variable: everything it needs comes in, everything it changes goes out. What
    it reports is one vector of sums, [examples, loss, other values ..., examples that each value is
    told for ..., metrics' variables ...], so that reports of replicas, steps and hosts are simply
    added up.
    """

    def __init__(self, experiment: Experiment, context: Context) -> None:
        self.experiment = experiment
        self.model = call(experiment.model, context)
        self.named: dict[str, Any] = {}
        if isinstance(self.model, keras.Model):
            self._compiled = bool(self.model.compiled) and not is_written(experiment, "loss")
        elif isinstance(self.model, tf.Module) and callable(self.model):
            self._compiled = False
            self.named = adopt(self.model)
        else:
            raise ConfigurationError(
                f"model() returned {self.model!r}: return a keras.Model or a callable tf.Module"
            )
        self.optimizer = make_optimizer(experiment, self.model, context)
        self.metrics = _make_metrics(experiment)
        self.element_spec: Any = None
        self.measures_gradients = False
        self.value_names = ["loss"]
        self.metric_variables: list[Any] = []
        self._loss = None if self._compiled else _make_loss(experiment)

    def build(self, train_spec: Any, eval_spec: Any = None) -> None:
        """Make every variable, by tracing a forward pass that is never run.

        It is traced for training, for evaluation where it may bring other values, or for both.
        """
        self.element_spec = eval_spec if train_spec is None else train_spec
        if train_spec is not None:
            self._trace(self._train_values, train_spec)
        if eval_spec is not None:
            self._trace(self._eval_values, eval_spec)
        metrics = [*(self.model.metrics if self._compiled else []), *self.metrics]
        self.metric_variables = [v for metric in metrics for v in metric.variables]

    def _trace(self, function: Callable[[Any], dict[str, Tensor]], element_spec: Any) -> None:
        try:
            tf.function(lambda batch: self._note_names(function(batch))).get_concrete_function(
                element_spec
            )
        except PhalanxError as error:
            # AutoGraph puts the way through the program before the message.
            message = str(error).rpartition(f"{type(error).__name__}: ")[2].strip()
            raise type(error)(message) from None
        except ValueError as error:
            if "singleton tf.Variable" in str(error):
                raise ConfigurationError(
                    f"{experiment_name(self.experiment)} makes variables each time it is called: "
                    "make them once, in model() or in a layer's build()"
                ) from error
            if misfit := _MISFIT.search(str(error)):
                raise ConfigurationError(
                    f"the model of {experiment_name(self.experiment)} does not take what the data "
                    f"gives ({_describe(element_spec)}): {misfit.group().strip()} Is the data in "
                    "batches, and of the right shape?"
                ) from error
            raise

    def make_host_variables(self) -> HostVariables:
        """The model's variables, as they are saved; the seeds follow from the step alone."""
        if self.named:
            trainable = [v for v in self.named.values() if v.trainable]
            others = [v for v in self.named.values() if not v.trainable]
        else:
            trainable = list(self.model.trainable_variables)
            others = list(self.model.non_trainable_variables)
        if not trainable:
            raise ConfigurationError(
                f"the model of {experiment_name(self.experiment)} has nothing to train: "
                "none of its variables is trainable"
            )
        self._seeds = [(v, np.asarray(v.numpy())) for v in others if _is_seed(v)]
        host_variables = HostVariables(
            trainable, [v for v in others if not _is_seed(v)], self.optimizer
        )
        host_variables.build()
        return host_variables

    def train(
        self,
        weights: DeviceVariables,
        pieces: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Any,
        replica: Any,
        step: Any,
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Gradients of the buffers, new state, and the report, for one batch."""
        tables = weights.table_pieces()
        whole = [number for number in range(len(pieces)) if number not in tables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([pieces[number] for number in whole])
            lookups = weights.prepare_lookups(pieces, tape)
            with self._scope(weights, pieces, state, replica, step) as scope, lookups.opened():
                values, count = self._reduce(self._train_values(batch), batch)
            objective = weights.scale_loss(values["loss"])
        found = tape.gradient(
            objective,
            [*(pieces[number] for number in whole), *lookups.rows],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        by_piece = dict(zip(whole, found, strict=False))
        by_piece |= lookups.gradients(
            found[len(whole) :], {number: pieces[number] for number in tables}
        )
        gradients = [by_piece[number] for number in range(len(pieces))]
        new_state = [_current(scope, variable) for variable in weights.host_variables.state]
        report = self._report(values, count, scope)
        if self.measures_gradients:
            scale = weights.scale_loss(tf.constant(1.0))
            merged = [merge_rows(gradient) for gradient in gradients]
            norm = tf.cast(tf.linalg.global_norm(merged), tf.float32) / scale
            report = tf.concat([report[:-1], [norm * count]], 0)
        return gradients, new_state, report

    def evaluate(
        self,
        weights: DeviceVariables,
        pieces: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Any,
    ) -> Tensor:
        """The report of one batch."""
        lookups = weights.prepare_lookups(pieces)
        with self._scope(weights, pieces, state, 0, 0) as scope, lookups.opened():
            values, count = self._reduce(self._eval_values(batch), batch)
        return self._report(values, count, scope)

    @property
    def report_size(self) -> int:
        """How long a report is."""
        metrics = sum(int(np.prod(v.shape)) for v in self.metric_variables)
        return 1 + 2 * len(self.value_names) + metrics + self.measures_gradients

    def read_report(self, report: Report) -> dict[str, float]:
        """The means and metrics that a sum of reports stands for."""
        results = read_means(self.value_names, report[1:])
        start = 1 + 2 * len(self.value_names)
        has_metrics = report[start : self.report_size - self.measures_gradients].any()
        for variable in self.metric_variables:
            size = int(np.prod(variable.shape))
            variable.assign(report[start : start + size].reshape(variable.shape))
            start += size
        found: dict[str, Any] = {}
        # A step of the user's own updates no metrics.
        if has_metrics:
            found |= self.model.get_metrics_result() if self._compiled else {}
            found |= {metric.name: metric.result() for metric in self.metrics}
        for name, value in found.items():
            if name != "loss" and np.ndim(value) == 0:
                results[name] = float(value)
        if self.measures_gradients and report[-1] > 0:
            results["gradient_norm"] = float(report[-1]) / float(report[0])
        return results

    def _scope(
        self,
        weights: DeviceVariables,
        pieces: Sequence[Tensor],
        state: Sequence[Tensor],
        replica: Any,
        step: Any,
    ) -> keras.StatelessScope:
        host_variables = weights.host_variables
        tables = weights.table_pieces()
        whole = [None if number in tables else piece for number, piece in enumerate(pieces)]
        values = weights.packing.unpack(whole)
        mapping = [
            pair
            for pair in zip(host_variables.trainable, values, strict=True)
            if pair[1] is not None
        ]
        mapping += zip(host_variables.state, weights.state_packing.unpack(state), strict=True)
        mapping += [(v, _salt(v.dtype, seed, replica, step)) for v, seed in self._seeds]
        mapping += [(v, tf.zeros(v.shape, v.dtype)) for v in self.metric_variables]
        return keras.StatelessScope(mapping)

    def _train_values(self, batch: Any) -> dict[str, Tensor]:
        if is_written(self.experiment, "train_step"):
            return _as_values(self.experiment.train_step(self.model, batch), "train_step")
        return self._default_values(batch, training=True)

    def _eval_values(self, batch: Any) -> dict[str, Tensor]:
        if is_written(self.experiment, "eval_step"):
            return _as_values(self.experiment.eval_step(self.model, batch), "eval_step")
        if not self._compiled and self._loss is None:
            return _as_values(self.experiment.train_step(self.model, batch), "train_step")
        return self._default_values(batch, training=False)

    def _default_values(self, batch: Any, training: bool) -> dict[str, Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = _forward(self.model, x, training)
        if self._compiled:
            loss = self.model.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
            self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            self._update_metrics(y, y_pred, sample_weight)
            return {"loss": loss}
        if self._loss is None:
            raise ConfigurationError(
                f"{experiment_name(self.experiment)} has no loss: write loss(y_true, y_pred) or "
                "train_step(model, batch), or compile the model"
            )
        if isinstance(self._loss, keras.losses.Loss):
            loss = self._loss(y, y_pred, sample_weight=sample_weight)
        else:
            loss = _mean_over_batch(self._loss(y, y_pred), batch, "loss", sample_weight)
        penalties = getattr(self.model, "losses", [])
        self._update_metrics(y, y_pred, sample_weight)
        return {"loss": loss + tf.add_n(penalties) if penalties else loss}

    def _update_metrics(self, y: Any, y_pred: Any, sample_weight: Any) -> None:
        for metric in self.metrics:
            metric.update_state(y, y_pred, sample_weight=sample_weight)

    def _note_names(self, values: dict[str, Tensor]) -> None:
        self.value_names += sorted(set(values) - set(self.value_names))

    def _reduce(self, values: dict[str, Tensor], batch: Any) -> tuple[dict[str, Tensor], Tensor]:
        count = tf.cast(batch_length(batch), tf.float32)
        return {name: _mean_over_batch(value, batch, name) for name, value in values.items()}, count

    def _report(self, values: dict[str, Tensor], count: Tensor, scope: Any) -> Tensor:
        sums = sum_values(self.value_names, values, count)
        metrics = [
            tf.reshape(tf.cast(_current(scope, v), tf.float32), [-1]) for v in self.metric_variables
        ]
        # The last place is for the norm of the gradients, which an evaluation has none of.
        norm = [tf.zeros([1])] if self.measures_gradients else []
        return tf.concat([tf.stack([count, *sums]), *metrics, *norm], 0)


def sum_values(names: Sequence[str], values: Mapping[str, Any], count: Any) -> list[Any]:
    """The sum of each value over a batch, then for how many examples it is told."""
    sums = [tf.cast(values[n], tf.float32) * count if n in values else 0.0 for n in names]
    return [*sums, *(count if name in values else 0.0 for name in names)]


def read_means(names: Sequence[str], sums: Report) -> dict[str, float]:
    """The means over all examples for which there was such a value."""
    counts = sums[len(names) : 2 * len(names)]
    found = zip(names, sums, counts, strict=False)
    return {name: float(total) / float(count) for name, total, count in found if count > 0}


def batch_length(batch: Any) -> Tensor:
    """How many examples are in a batch."""
    first = tf.nest.flatten(batch, expand_composites=False)[0]
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]


def _mean_over_batch(value: Any, batch: Any, name: str, sample_weight: Any = None) -> Tensor:
    if value is None:
        raise ConfigurationError(f"the {name} is None: return one number, or one an example")
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        if sample_weight is not None:
            raise ConfigurationError(
                f"the data has sample weights, but the {name} is one number for the whole batch: "
                "return one an example, or use a loss of Keras"
            )
        return value
    length = batch_length(batch)
    static = tf.get_static_value(length)
    if value.shape.rank != 1 or (
        static is not None and value.shape[0] is not None and value.shape[0] != static
    ):
        raise ConfigurationError(
            f"the {name} has the shape {tuple(value.shape)} for a batch of "
            f"{'?' if static is None else static} examples: give one number, or one an example"
        )
    if static is None and value.shape[0] is not None:
        tf.debugging.assert_equal(
            length, value.shape[0], f"the {name} must be one number, or one for each example"
        )
    if sample_weight is not None:
        value = value * tf.cast(sample_weight, value.dtype)
    return tf.reduce_mean(value)


def _describe(element_spec: Any) -> str:
    specs = tf.nest.flatten(element_spec)
    return ", ".join(f"{tuple(spec.shape)} {spec.dtype.name}" for spec in specs)


def _forward(model: Any, x: Any, training: bool) -> Any:
    if isinstance(model, keras.Model):
        return model(x, training=training)
    if "training" in inspect.signature(model.__call__).parameters:
        return model(x, training=training)
    return model(x)


def _current(scope: Any, variable: Any) -> Tensor:
    return scope.get_current_value(variable)


def _is_seed(variable: Any) -> bool:
    return variable.path.endswith("seed_generator_state") and tuple(variable.shape) == (2,)


def _salt(dtype: str, seed: Any, replica: Any, step: Any) -> Tensor:
    """A seed of its own for every replica and step, the same whenever that step is run again."""
    salt = tf.stack([tf.cast(replica, tf.int64), tf.cast(step, tf.int64) * 1_000_003])
    return tf.cast((seed.astype(np.int64) + salt) % 2**31, dtype)


def _make_loss(experiment: Experiment) -> Callable[[Any, Any], Any] | None:
    if not is_written(experiment, "loss"):
        return None
    loss: Any = experiment.loss
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    return loss  # type: ignore[no-any-return]


def _make_metrics(experiment: Experiment) -> list[Any]:
    metrics: Any = experiment.metrics
    if callable(metrics):
        metrics = metrics()
    return [keras.metrics.get(m) if isinstance(m, str) else m for m in metrics]


def _as_values(returned: Any, function: str) -> dict[str, Tensor]:
    if not isinstance(returned, dict):
        returned = {"loss": returned}
    if returned.get("loss") is None:
        raise ConfigurationError(
            f"{function} returned {sorted(returned)}: return the loss, or a dict that has it as "
            '"loss"'
        )
    return dict(returned)
