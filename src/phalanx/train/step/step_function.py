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
from phalanx.train.step.in_place import InPlaceUpdates, Synchronize
from phalanx.train.step.metric_sums import (
    find_metric,
    is_sum,
    list_metrics,
    needs_check,
    refuse_metric,
)
from phalanx.train.step.model_step import (
    ModelStep,
    find_labeled,
    find_model_step,
    label_values,
)
from phalanx.train.step.modules import convert_variables
from phalanx.train.step.optimizer_calls import OptimizerCall
from phalanx.train.step.report_values import (
    batch_length,
    mean_over_batch,
    read_means,
    set_norm,
    sum_values,
)
from phalanx.train.step.seeds import (
    UNCOUNTED,
    CountingScope,
    SeedStates,
    find_global_seed,
    is_seed,
    make_seed,
)
from phalanx.train.step.step_analysis import Results, StepAnalysis, analyze
from phalanx.train.step.tape_scope import TapeScope
from phalanx.train.types import (
    Array,
    Batch,
    ElementSpec,
    KerasVariable,
    Layer,
    Loss,
    Metric,
    Model,
    Optimizer,
    StepValues,
    Tensor,
)
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.host_variables import HostVariables, inner_optimizer

# How the errors of Keras read when a layer or model gets input that it was not built for.
_MISFIT = re.compile(
    r"^.*(is incompatible with the layer|Invalid input shape|doesn't match the expected).*$", re.M
)


class StepResult(NamedTuple):
    """What a step computes: the gradients of buffers, the state that it changes, a report."""

    gradients: list[Tensor]
    state: list[Tensor]
    report: Tensor


class _Update(NamedTuple):
    """A variable with its symbolic values before and after a step."""

    variable: KerasVariable
    before: Tensor
    after: Tensor
    assignments: int


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
        self._train_step = find_model_step(experiment, self.model, "train_step", "train_step")
        self._test_step = find_model_step(experiment, self.model, "test_step", "eval_step")
        self._analysis: StepAnalysis | None = None
        self._results: dict[str, Results] = {}
        self.optimizer: Optimizer = None
        if self._train_step is None:
            self.optimizer = make_optimizer(experiment, self.model, context)
        self.metrics = _make_metrics(experiment)
        self.element_spec: ElementSpec = None
        self._train_spec: ElementSpec = None
        self._eval_spec: ElementSpec = None
        self.measures_gradients = False
        self.value_names = ["loss"]
        self.metric_variables: list[KerasVariable] = []
        self.seeds = SeedStates()
        self._loss = None if self._compiled else _make_loss(experiment)

    def build(self, train_spec: ElementSpec, eval_spec: ElementSpec = None) -> None:
        """Create all variables, by tracing a step that never runs: for each spec that is not None.

        Evaluation is traced where its step may return other values than the training step.
        """
        self._train_spec, self._eval_spec = train_spec, eval_spec
        self.element_spec = eval_spec if train_spec is None else train_spec
        if train_spec is not None:
            self._trace(self._train_values, train_spec)
        if eval_spec is not None:
            self._trace(self._eval_values, eval_spec)
        metrics = self._all_metrics()
        for metric in metrics:
            # An earlier call of `fit` has left its sums.
            metric.reset_state()
        self.metric_variables = [v for metric in metrics for v in metric.variables]
        if self._train_step is not None and train_spec is not None:
            self._analysis = self._analyze(self._train_step, train_spec)
        if self._test_step is not None and eval_spec is not None:
            self._analyze(self._test_step, eval_spec)
        self._check_metrics()

    def _analyze(self, step: ModelStep, element_spec: ElementSpec) -> StepAnalysis:
        variables = [v for v in _list_variables(self.model) if not is_seed(v)]
        analysis = analyze(step, element_spec, variables, self._all_metrics())
        self._results[step.method] = analysis.results
        return analysis

    def _all_metrics(self) -> list[Metric]:
        return list_metrics([*(self.model.metrics if self._compiled else []), *self.metrics])

    def _check_metrics(self) -> None:
        """Refuse a metric whose variables cannot be summed over batches and replicas."""
        metrics = [metric for metric in self._all_metrics() if needs_check(metric)]
        variables = [v for metric in metrics for v in metric.variables]
        others: list[KerasVariable] = []
        for function, spec in self._steps():
            if variables:
                updates = self._trace_updates(function, spec, variables)
                others += [u.variable for u in updates if not is_sum(u.after, u.before)]
        if (metric := find_metric(metrics, others)) is not None:
            raise refuse_metric(metric)

    def _steps(self) -> list[tuple[Callable[[Batch], dict[str, Tensor]], ElementSpec]]:
        """Return the functions that were built, each with the spec of its batches.

        A step that the model overrides is analyzed by itself.
        """
        steps = [
            (self._train_values, self._train_spec, self._train_step),
            (self._eval_values, self._eval_spec, self._test_step),
        ]
        return [(f, spec) for f, spec, own in steps if spec is not None and own is None]

    def _trace_updates(
        self,
        function: Callable[[Batch], dict[str, Tensor]],
        element_spec: ElementSpec,
        variables: Sequence[KerasVariable],
    ) -> list[_Update]:
        """Return what a step that never runs does to variables."""
        updates: list[_Update] = []

        def trace(batch: Batch) -> None:
            # Regularizers read the value of their weight from the scope.
            mapped = {id(v): v for v in [*variables, *getattr(self.model, "variables", ())]}
            mapping = [(v, tf.identity(v.value)) for v in mapped.values()]
            with CountingScope(mapping) as scope:
                before = [scope.get_current_value(variable) for variable in variables]
                function(batch)
            updates.extend(
                _Update(variable, old, scope.get_current_value(variable), scope.count(variable))
                for variable, old in zip(variables, before, strict=True)
            )

        tf.function(trace).get_concrete_function(element_spec)
        return updates

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

        Each step computes these from the number of the step.
        """
        if self.named:
            trainable = [v for v in self.named.values() if v.trainable]
            others = [v for v in self.named.values() if not v.trainable]
        else:
            trainable = list(self.model.trainable_variables)
            others = list(self.model.non_trainable_variables)
            others += [v for layer in stateful_layers(self.model) for v in layer.states]
        if self._train_step is not None:
            return self._make_model_step_variables(trainable, others)
        if not trainable:
            raise ConfigurationError(
                f"the model of {experiment_name(self.experiment)} has nothing to train: "
                "none of its variables is trainable"
            )
        seeds = [v for v in others if is_seed(v)] + find_global_seed()
        state = [v for v in others if not is_seed(v)]
        self.seeds = SeedStates([(seed, 0) for seed in seeds])
        fixed: frozenset[int] = frozenset()
        if self._train_spec is not None:
            variables = [*trainable, *state, *seeds]
            updates = self._trace_updates(self._train_values, self._train_spec, variables)
            _check_assigned(updates[: len(trainable)])
            of_state = updates[len(trainable) : len(trainable) + len(state)]
            fixed = frozenset(i for i, u in enumerate(of_state) if u.after is u.before)
            drawn = updates[len(trainable) + len(state) :]
            self.seeds = SeedStates([(u.variable, u.assignments) for u in drawn])
        host_variables = HostVariables(
            trainable,
            state,
            self.optimizer,
            self._find_disconnected(trainable),
            fixed,
        )
        host_variables.build()
        return host_variables

    def _make_model_step_variables(
        self, trainable: list[KerasVariable], others: list[KerasVariable]
    ) -> HostVariables:
        """Return the variables for a `train_step` of the model; its analysis says what trains."""
        seeds = [v for v in others if is_seed(v)] + find_global_seed()
        self.seeds = SeedStates([(seed, UNCOUNTED) for seed in seeds])
        state = [v for v in others if not is_seed(v)]
        if self._analysis is None:
            # Only an evaluation: the optimizers of the model stay as they are.
            host_variables = HostVariables(trainable, state, keras.optimizers.SGD(0.0))
        else:
            host_variables = self._analysis.make_host_variables(self.model, trainable, state)
        self.optimizer = host_variables.optimizer
        host_variables.build()
        return host_variables

    @property
    def updates_in_place(self) -> bool:
        """Whether a training step changes weights while it runs: see `train_in_place`."""
        return self._analysis is not None and self._analysis.updates_in_place

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that train the model: several if its own `train_step` calls several."""
        return [self.optimizer] if self._analysis is None else self._analysis.optimizers

    @property
    def has_model_steps(self) -> bool:
        """Whether the model overrides `train_step` or `test_step`."""
        return self._train_step is not None or self._test_step is not None

    def describe_updates(self) -> str:
        """Say why a `train_step` updates in place, for messages."""
        assert self._analysis is not None
        return self._analysis.describe_updates()

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
        if self._train_spec is None:
            # Only an evaluation: some engines trace this function, and never run it.
            changed = variables.select_changing(state)
            return StepResult(variables.zero_gradients(), changed, tf.zeros([self.report_size]))
        if self._train_step is not None:
            return self._train_by_model_step(variables, buffers, state, batch, replica, step)
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
        report = self._report(values, count, scope.get_current_value)
        if self.measures_gradients:
            report = set_norm(report, gradients, variables.scale_loss(tf.constant(1.0)))
        changed = variables.select_changing(variables.state_layout.flatten(new_state))
        return StepResult(gradients, changed, report)

    def _train_by_model_step(
        self,
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Batch,
        replica: Tensor | int,
        step: Tensor | int,
    ) -> StepResult:
        """Return the gradients that the model's `train_step` passes to its optimizer."""
        assert self._train_step is not None
        calls: list[OptimizerCall] = []
        scope = self._tape_scope(self._train_step, variables, buffers, state, replica, step)
        with scope:
            returned = self._train_step.run(batch, calls.append)
        (call,) = calls
        gradients = variables.layout.flatten(call.dense_gradients())
        report = self._report_model_step(self._train_step, returned, batch, scope)
        if self.measures_gradients:
            report = set_norm(report, gradients, variables.scale_loss(tf.constant(1.0)))
        return StepResult(gradients, self._changed_state(variables, scope), report)

    def train_in_place(
        self,
        variables: DeviceVariables,
        batch: Batch,
        replica: Tensor | int,
        step: Tensor | int,
        synchronize: Synchronize,
    ) -> StepResult:
        """Run a `train_step` that updates the weights itself: the result has no gradients."""
        assert self._train_step is not None
        buffers, state = variables.read(), variables.read_state()
        scope = self._tape_scope(self._train_step, variables, buffers, state, replica, step)
        updates = InPlaceUpdates(scope, variables, synchronize)
        with scope:
            returned = self._train_step.run(batch, updates.apply)
            updates.write_assigned()
        report = self._report_model_step(self._train_step, returned, batch, scope)
        if self.measures_gradients:
            report = set_norm(report, updates.gradients, tf.constant(1.0))
        return StepResult([], self._changed_state(variables, scope), report)

    def _changed_state(self, variables: DeviceVariables, scope: TapeScope) -> list[Tensor]:
        values = [scope.current(variable) for variable in variables.host_variables.state]
        return variables.select_changing(variables.state_layout.flatten(values))

    def evaluate(
        self,
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Batch,
    ) -> Tensor:
        """Return the report of one batch."""
        lookups, test_step = variables.prepare_lookups(buffers), self._test_step
        if test_step is not None:
            tape_scope = self._tape_scope(test_step, variables, buffers, state, 0, 0)
            with tape_scope, lookups.activate():
                returned = test_step.run(batch, test_step.refuse_call)
            return self._report_model_step(test_step, returned, batch, tape_scope)
        with self._scope(variables, buffers, state, 0, 0) as scope, lookups.activate():
            values, count = self._reduce(self._eval_values(batch), batch)
        return self._report(values, count, scope.get_current_value)

    @property
    def report_size(self) -> int:
        metrics = sum(int(np.prod(v.shape)) for v in self.metric_variables)
        return 1 + 2 * len(self.value_names) + metrics + self.measures_gradients

    def read_report(self, report: Array) -> dict[str, float]:
        """Return the means and metrics of a sum of reports."""
        results = read_means(self.value_names, report[1:])
        start = 1 + 2 * len(self.value_names)
        has_metrics = bool(report[start : self.report_size - self.measures_gradients].any())
        sums: dict[int, Array] = {}
        for variable in self.metric_variables:
            size = int(np.prod(variable.shape))
            sums[id(variable)] = report[start : start + size].reshape(variable.shape)
            variable.assign(sums[id(variable)])
            start += size
        computed: dict[str, Tensor] = {}
        # A train_step or eval_step that the user writes in the experiment updates no metrics.
        shows_metrics = has_metrics or self.has_model_steps
        for method, exact in self._results.items():
            if own := find_labeled(method, results):
                results, shows_metrics = own | exact.compute(sums), False
        if shows_metrics:
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
        mapping = self._map_values(variables, buffers, state, replica, step)
        mapping += [(v, tf.zeros(v.shape, v.dtype)) for v in self.metric_variables]
        return keras.StatelessScope(mapping, collect_losses=True)

    def _tape_scope(
        self,
        model_step: ModelStep,
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        replica: Tensor | int,
        step: Tensor | int,
    ) -> TapeScope:
        """Return a scope for a step that the model overrides."""

        def find_value(variable: KerasVariable) -> Tensor | None:
            if is_seed(variable):
                return make_seed(variable.dtype, np.zeros([2], np.int64), replica, step)
            return variables.find_optimizer_value(variable)

        metrics = [*self.metric_variables, *model_step.unlisted_variables()]
        return TapeScope(
            self._map_values(variables, buffers, state, replica, step),
            [(v, tf.zeros(v.shape, v.dtype)) for v in metrics],
            find_value,
            model_step.refuse_assignment,
        )

    def _map_values(
        self,
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        replica: Tensor | int,
        step: Tensor | int,
    ) -> list[tuple[KerasVariable, Tensor]]:
        """Return the values of weights, state and seeds; a sparse table has none."""
        host_variables = variables.host_variables
        dense = [None if variables.is_sparse(i) else buffer for i, buffer in enumerate(buffers)]
        weights = zip(host_variables.trainable, variables.layout.unflatten(dense), strict=True)
        mapping = [(variable, value) for variable, value in weights if value is not None]
        mapping += zip(host_variables.state, variables.state_layout.unflatten(state), strict=True)
        return mapping + self.seeds.at(replica, step)

    def _train_values(self, batch: Batch) -> dict[str, Tensor]:
        if is_written(self.experiment, "train_step"):
            return _as_values(self.experiment.train_step(self.model, batch), "train_step")
        if self._train_step is not None:
            return label_values(self._train_step, self._train_step.build(batch))
        return self._default_values(batch, training=True)

    def _eval_values(self, batch: Batch) -> dict[str, Tensor]:
        if is_written(self.experiment, "eval_step"):
            return _as_values(self.experiment.eval_step(self.model, batch), "eval_step")
        if self._test_step is not None:
            return label_values(self._test_step, self._test_step.build(batch))
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
            loss = mean_over_batch(self._loss(y, y_pred), batch, "loss", sample_weight)
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
        return {name: mean_over_batch(value, batch, name) for name, value in values.items()}, count

    def _report_model_step(
        self, model_step: ModelStep, returned: Mapping[str, Tensor], batch: Batch, scope: TapeScope
    ) -> Tensor:
        values, count = self._reduce(label_values(model_step, returned), batch)
        # What the session shows, and checks for NaN.
        numbers = [tf.cast(value, tf.float32) for value in values.values()]
        values["loss"] = values.get(f"{model_step.method}/loss", tf.add_n(numbers))
        return self._report(values, count, scope.current)

    def _report(
        self, values: dict[str, Tensor], count: Tensor, get_value: Callable[..., Tensor]
    ) -> Tensor:
        sums = sum_values(self.value_names, values, count)
        metrics = [
            tf.reshape(tf.cast(get_value(v), tf.float32), [-1]) for v in self.metric_variables
        ]
        # The last element is the norm of the gradients; an evaluation leaves it 0.
        norm = [tf.zeros([1])] if self.measures_gradients else []
        return tf.concat([tf.stack([count, *sums]), *metrics, *norm], 0)


def _list_variables(model: Model) -> list[KerasVariable]:
    """Return the variables of a Keras model with the state of its recurrent layers."""
    return [*model.variables, *(v for layer in stateful_layers(model) for v in layer.states)]


def _check_assigned(updates: Sequence[_Update]) -> None:
    """Refuse a model whose step assigns trainable weights: only the optimizer may change them."""
    for variable, before, after, _ in updates:
        if after is not before:
            raise ConfigurationError(
                f"a layer of the model assigns its trainable weight {variable.path} when it is "
                "called, as keras.layers.SpectralNormalization does: this would be lost, because a "
                "step changes trainable weights by gradients only. Compute the value that you need "
                "from the weight instead of assigning it, or make the weight non-trainable"
            )


def stateful_layers(model: Model) -> list[Layer]:
    """Return the recurrent layers that keep their state from batch to batch.

    Keras does not count that state among the variables of the model.
    """
    layers = model._flatten_layers() if isinstance(model, keras.Model) else []
    return [layer for layer in layers if isinstance(layer, keras.layers.RNN) and layer.stateful]


def _describe(element_spec: ElementSpec) -> str:
    specs = tf.nest.flatten(element_spec)
    return ", ".join(f"{tuple(spec.shape)} {spec.dtype.name}" for spec in specs)


def _forward(model: Model, x: Batch, training: bool) -> Tensor:
    if isinstance(model, keras.Model):
        return model(x, training=training)
    if "training" in inspect.signature(model.__call__).parameters:
        return model(x, training=training)
    return model(x)


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
