"""The user's step as a pure function: (weights, state, batch) -> (gradients, state, report)."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
from phalanx.train.step.modules import convert_variables
from phalanx.train.types import (
    Array,
    Batch,
    ElementSpec,
    KerasVariable,
    Loss,
    Metric,
    Model,
    StepValues,
    Tensor,
)
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.host_variables import HostVariables, inner_optimizer
from phalanx.train.variables.sparse_tables import merge_rows

# How the errors of Keras read when a layer or model gets input that it was not built for.
_MISFIT = re.compile(
    r"^.*(is incompatible with the layer|Invalid input shape|doesn't match the expected).*$", re.M
)


class StepResult(NamedTuple):
    """What a step computes: the gradients of buffers, the buffers of the new state, a report."""

    gradients: list[Tensor]
    state: list[Tensor]
    report: Tensor


class StepFunction:
    """The model of an experiment, and its training and evaluation step.

    A step changes no variable: all that it needs is passed in, all that it changes is returned. Its
    report is one vector of sums: [examples, loss, other values ..., examples that have each value
    ..., variables of the metrics ...]. Reports of replicas, steps and hosts can be added up.
    """

    def __init__(self, experiment: Experiment, context: Context) -> None:
        self.experiment = experiment
        self.model = call(experiment.model, context)
        self.named: dict[str, KerasVariable] = {}
        if isinstance(self.model, keras.Model):
            self._compiled = bool(self.model.compiled) and not is_written(experiment, "loss")
        elif isinstance(self.model, tf.Module) and callable(self.model):
            self._compiled = False
            self.named = convert_variables(self.model)
        else:
            raise ConfigurationError(
                f"model() returned {self.model!r}: return a keras.Model or a callable tf.Module"
            )
        if self._compiled:
            _check_overrides(experiment, self.model)
        self.optimizer = make_optimizer(experiment, self.model, context)
        self.metrics = _make_metrics(experiment)
        self.element_spec: ElementSpec = None
        self._train_spec: ElementSpec = None
        self.measures_gradients = False
        self.value_names = ["loss"]
        self.metric_variables: list[KerasVariable] = []
        self._loss = None if self._compiled else _make_loss(experiment)

    def build(self, train_spec: ElementSpec, eval_spec: ElementSpec = None) -> None:
        """Create all variables, by tracing a step that never runs: for each spec that is not None.

        Evaluation is traced where its step may return other values than the training step.
        """
        self._train_spec = train_spec
        self.element_spec = eval_spec if train_spec is None else train_spec
        if train_spec is not None:
            self._trace(self._train_values, train_spec)
        if eval_spec is not None:
            self._trace(self._eval_values, eval_spec)
        metrics = [*(self.model.metrics if self._compiled else []), *self.metrics]
        self.metric_variables = [v for metric in metrics for v in metric.variables]

    def _trace(
        self, function: Callable[[Batch], dict[str, Tensor]], element_spec: ElementSpec
    ) -> None:
        try:
            tf.function(lambda batch: self._note_names(function(batch))).get_concrete_function(
                element_spec
            )
        except PhalanxError as error:
            # AutoGraph prefixes the message with a traceback.
            message = str(error).rpartition(f"{type(error).__name__}: ")[2].strip()
            raise type(error)(message) from None
        except ValueError as error:
            if "singleton tf.Variable" in str(error):
                raise ConfigurationError(
                    f"{experiment_name(self.experiment)} creates variables each time it is called: "
                    "create them once, in model() or in a layer's build()"
                ) from error
            if misfit := _MISFIT.search(str(error)):
                raise ConfigurationError(
                    f"the model of {experiment_name(self.experiment)} does not accept the "
                    f"batches of the data ({_describe(element_spec)}): {misfit.group().strip()} "
                    "Check that the data is batched and has the right shape"
                ) from error
            raise

    def make_host_variables(self) -> HostVariables:
        """Return the model's variables and its optimizer's, without the states of seed generators.

        Each step computes its seeds from the number of the step.
        """
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
            trainable,
            [v for v in others if not _is_seed(v)],
            self.optimizer,
            self._find_disconnected(trainable),
        )
        host_variables.build()
        return host_variables

    def _find_disconnected(self, trainable: list[KerasVariable]) -> frozenset[int]:
        """Return the positions of the weights that the loss of a training step does not depend on.

        Only weight decay would change them, so the question costs a trace only where it is set.
        """
        if self._train_spec is None or inner_optimizer(self.optimizer).weight_decay is None:
            return frozenset()
        found: list[int] = []

        def trace(batch: Batch) -> None:
            with tf.GradientTape() as tape:
                loss = self._reduce(self._train_values(batch), batch)[0]["loss"]
            gradients = tape.gradient(loss, [variable.value for variable in trainable])
            found.extend(index for index, g in enumerate(gradients) if g is None)

        tf.function(trace, autograph=False).get_concrete_function(self._train_spec)
        return frozenset(found)

    def train(
        self,
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Batch,
        replica: Tensor | int,
        step: Tensor | int,
    ) -> StepResult:
        """Compute the gradients of one batch; its random seeds depend on `replica` and `step`."""
        sparse = variables.sparse_buffers()
        dense = [index for index in range(len(buffers)) if not variables.is_sparse(index)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([buffers[index] for index in dense])
            lookups = variables.prepare_lookups(buffers, tape)
            with self._scope(variables, buffers, state, replica, step) as scope, lookups.activate():
                values, count = self._reduce(self._train_values(batch), batch)
            objective = variables.scale_loss(values["loss"])
        computed = tape.gradient(
            objective,
            [*(buffers[index] for index in dense), *lookups.rows],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        by_buffer = dict(zip(dense, computed, strict=False))
        by_buffer |= lookups.gradients(
            computed[len(dense) :], {index: buffers[index] for index in sparse}
        )
        gradients = [by_buffer[index] for index in range(len(buffers))]
        new_state = [scope.get_current_value(v) for v in variables.host_variables.state]
        report = self._report(values, count, scope)
        if self.measures_gradients:
            loss_scale = variables.scale_loss(tf.constant(1.0))
            merged = [merge_rows(gradient) for gradient in gradients]
            norm = tf.cast(tf.linalg.global_norm(merged), tf.float32) / loss_scale
            report = tf.concat([report[:-1], [norm * count]], 0)
        return StepResult(gradients, variables.state_layout.flatten(new_state), report)

    def evaluate(
        self,
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Batch,
    ) -> Tensor:
        """Return the report of one batch."""
        lookups = variables.prepare_lookups(buffers)
        with self._scope(variables, buffers, state, 0, 0) as scope, lookups.activate():
            values, count = self._reduce(self._eval_values(batch), batch)
        return self._report(values, count, scope)

    @property
    def report_size(self) -> int:
        metrics = sum(int(np.prod(v.shape)) for v in self.metric_variables)
        return 1 + 2 * len(self.value_names) + metrics + self.measures_gradients

    def read_report(self, report: Array) -> dict[str, float]:
        """Return the means and metrics of a sum of reports."""
        results = read_means(self.value_names, report[1:])
        start = 1 + 2 * len(self.value_names)
        has_metrics = report[start : self.report_size - self.measures_gradients].any()
        for variable in self.metric_variables:
            size = int(np.prod(variable.shape))
            variable.assign(report[start : start + size].reshape(variable.shape))
            start += size
        computed: dict[str, Tensor] = {}
        # A train_step or eval_step that the user writes updates no metrics.
        if has_metrics:
            computed |= self.model.get_metrics_result() if self._compiled else {}
            computed |= {metric.name: metric.result() for metric in self.metrics}
        for name, value in computed.items():
            if name != "loss" and np.ndim(value) == 0:
                results[name] = float(value)
        if self.measures_gradients and report[-1] > 0:
            results["gradient_norm"] = float(report[-1]) / float(report[0])
        return results

    def _scope(
        self,
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        replica: Tensor | int,
        step: Tensor | int,
    ) -> keras.StatelessScope:
        host_variables = variables.host_variables
        dense = [None if variables.is_sparse(i) else buffer for i, buffer in enumerate(buffers)]
        weights = zip(host_variables.trainable, variables.layout.unflatten(dense), strict=True)
        mapping = [(variable, value) for variable, value in weights if value is not None]
        mapping += zip(host_variables.state, variables.state_layout.unflatten(state), strict=True)
        mapping += [(v, _make_seed(v.dtype, seed, replica, step)) for v, seed in self._seeds]
        mapping += [(v, tf.zeros(v.shape, v.dtype)) for v in self.metric_variables]
        return keras.StatelessScope(mapping, collect_losses=True)

    def _train_values(self, batch: Batch) -> dict[str, Tensor]:
        if is_written(self.experiment, "train_step"):
            return _as_values(self.experiment.train_step(self.model, batch), "train_step")
        return self._default_values(batch, training=True)

    def _eval_values(self, batch: Batch) -> dict[str, Tensor]:
        if is_written(self.experiment, "eval_step"):
            return _as_values(self.experiment.eval_step(self.model, batch), "eval_step")
        if not self._compiled and self._loss is None:
            return _as_values(self.experiment.train_step(self.model, batch), "train_step")
        return self._default_values(batch, training=False)

    def _default_values(self, batch: Batch, training: bool) -> dict[str, Tensor]:
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

    def _update_metrics(self, y: Batch, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        for metric in self.metrics:
            metric.update_state(y, y_pred, sample_weight=sample_weight)

    def _note_names(self, values: dict[str, Tensor]) -> None:
        self.value_names += sorted(set(values) - set(self.value_names))

    def _reduce(self, values: dict[str, Tensor], batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        count = tf.cast(batch_length(batch), tf.float32)
        return {name: _mean_over_batch(value, batch, name) for name, value in values.items()}, count

    def _report(
        self, values: dict[str, Tensor], count: Tensor, scope: keras.StatelessScope
    ) -> Tensor:
        sums = sum_values(self.value_names, values, count)
        metrics = [
            tf.reshape(tf.cast(scope.get_current_value(v), tf.float32), [-1])
            for v in self.metric_variables
        ]
        # The last element is the norm of the gradients; an evaluation leaves it 0.
        norm = [tf.zeros([1])] if self.measures_gradients else []
        return tf.concat([tf.stack([count, *sums]), *metrics, *norm], 0)


def sum_values(
    names: Sequence[str], values: Mapping[str, Tensor], count: Tensor | float
) -> list[Tensor | float]:
    """Return the sum of each value over a batch, then the number of examples that have it."""
    sums = [tf.cast(values[n], tf.float32) * count if n in values else 0.0 for n in names]
    return [*sums, *(count if name in values else 0.0 for name in names)]


def read_means(names: Sequence[str], sums: Array) -> dict[str, float]:
    """Return the mean of each value over the examples that have it."""
    counts = sums[len(names) : 2 * len(names)]
    totals = zip(names, sums, counts, strict=False)
    return {name: float(total) / float(count) for name, total, count in totals if count > 0}


def batch_length(batch: Batch) -> Tensor:
    """Return how many examples a batch has."""
    first = tf.nest.flatten(batch, expand_composites=False)[0]
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]


def _mean_over_batch(
    value: Tensor | None, batch: Batch, name: str, sample_weight: Tensor | None = None
) -> Tensor:
    if value is None:
        raise ConfigurationError(f"the {name} is None: return one number, or one per example")
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        if sample_weight is not None:
            raise ConfigurationError(
                f"the data has sample weights, but the {name} is one number for the whole batch: "
                "return one number per example, or use a loss of Keras"
            )
        return value
    length = batch_length(batch)
    static = tf.get_static_value(length)
    if value.shape.rank != 1 or (
        static is not None and value.shape[0] is not None and value.shape[0] != static
    ):
        raise ConfigurationError(
            f"the {name} has the shape {tuple(value.shape)} for a batch of "
            f"{'?' if static is None else static} examples: return one number, or one per example"
        )
    if static is None and value.shape[0] is not None:
        tf.debugging.assert_equal(
            length, value.shape[0], f"the {name} must be one number, or one for each example"
        )
    if sample_weight is not None:
        value = value * tf.cast(sample_weight, value.dtype)
    return tf.reduce_mean(value)


def _check_overrides(experiment: Experiment, model: Model) -> None:
    """Refuse a step that the model overrides and the experiment does not: it would not run."""
    for name, ours in (("train_step", "train_step"), ("test_step", "eval_step")):
        overrides = getattr(type(model), name) is not getattr(keras.Model, name)
        if overrides and not is_written(experiment, ours):
            raise ConfigurationError(
                f"{type(model).__name__} overrides {name}, which applies its own gradients and "
                f"cannot run on several replicas: write {ours}(model, batch) in the experiment, "
                "which returns the loss"
            )


def _describe(element_spec: ElementSpec) -> str:
    specs = tf.nest.flatten(element_spec)
    return ", ".join(f"{tuple(spec.shape)} {spec.dtype.name}" for spec in specs)


def _forward(model: Model, x: Batch, training: bool) -> Tensor:
    if isinstance(model, keras.Model):
        return model(x, training=training)
    if "training" in inspect.signature(model.__call__).parameters:
        return model(x, training=training)
    return model(x)


def _is_seed(variable: KerasVariable) -> bool:
    return variable.path.endswith("seed_generator_state") and tuple(variable.shape) == (2,)


def _make_seed(dtype: str, seed: Array, replica: Tensor | int, step: Tensor | int) -> Tensor:
    """Return a seed that is unique to a replica and a step, and the same if the step runs again."""
    offset = tf.stack([tf.cast(replica, tf.int64), tf.cast(step, tf.int64) * 1_000_003])
    return tf.cast((seed.astype(np.int64) + offset) % 2**31, dtype)


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
