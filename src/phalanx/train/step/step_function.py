"""The user's step as a pure function: (weights, state, batch) -> (gradients, state, report)."""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.autograph import unconverted
from phalanx.train.context import Context
from phalanx.train.experiment import (
    Experiment,
    call,
    experiment_name,
    is_written,
    make_optimizer,
)
from phalanx.train.step.in_place import InPlaceUpdates, Synchronize
from phalanx.train.step.metric_sums import find_metric, is_sum, needs_check, refuse_metric
from phalanx.train.step.model_step import ModelStep, find_labeled, label_values
from phalanx.train.step.modules import convert_variables
from phalanx.train.step.optimizer_calls import OptimizerCall
from phalanx.train.step.report_layout import ReportLayout
from phalanx.train.step.report_values import (
    GetValue,
    batch_length,
    mean_over_batch,
    weigh_by_examples,
)
from phalanx.train.step.seeds import (
    SeedStates,
    find_global_seed,
    is_seed,
    make_seed,
)
from phalanx.train.step.step_analysis import Results, StepAnalysis, analyze
from phalanx.train.step.tape_scope import TapeScope
from phalanx.train.step.tracing import (
    ComputeValues,
    GradientTrace,
    Update,
    check_assigned,
    has_lookups,
    trace_gradients,
    trace_names,
    trace_updates,
    warn_of_copies,
)
from phalanx.train.step.user_step import UserStep
from phalanx.train.types import (
    Array,
    Batch,
    ElementSpec,
    KerasVariable,
    Layer,
    Model,
    Optimizer,
    Tensor,
)
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.host_variables import HostVariables, inner_optimizer, needs_lookups
from phalanx.train.variables.index_shard import Sightings
from phalanx.train.variables.large_variable import describe_large_variables
from phalanx.train.variables.sparse_tables import is_index, is_table, make_sparse

LOG = logging.getLogger("phalanx")


class StepResult(NamedTuple):
    """What a step computes: the gradients of buffers, the state that it changes, a report."""

    gradients: list[Tensor]
    state: list[Tensor]
    report: Tensor
    sightings: list[Sightings]
    """The ids that were looked up in each buffer of a growing table."""


class StepFunction:
    """The model of an experiment, and its training and evaluation step.

    A step changes no variable: all that it needs is passed in, all that it changes is returned. Its
    report is one vector of sums, so that those of replicas, steps and hosts can be added up.
    """

    def __init__(self, experiment: Experiment, context: Context) -> None:
        self.experiment = experiment
        with describe_large_variables():
            self.model = call(experiment.model, context)
        self.named: dict[str, KerasVariable] = {}
        if not isinstance(self.model, keras.Model):
            if not isinstance(self.model, tf.Module) or not callable(self.model):
                raise ConfigurationError(
                    f"model() returned {self.model!r}: return a keras.Model or a callable tf.Module"
                )
            self.named = convert_variables(self.model)
        self._user_step = UserStep(experiment, self.model)
        self._train_step = self._user_step.train_step
        self._test_step = self._user_step.test_step
        self._analysis: StepAnalysis | None = None
        self._results: dict[str, Results] = {}
        self.optimizer: Optimizer = None
        if self._train_step is None:
            self.optimizer = make_optimizer(experiment, self.model, context)
        self.element_spec: ElementSpec = None
        self._train_spec: ElementSpec = None
        self._eval_spec: ElementSpec = None
        self.report = ReportLayout()
        self.seeds = SeedStates()
        self._num_replicas = context.num_replicas
        self._num_tasks = context.num_shards
        self._hidden: set[str] = set()

    def build(self, train_spec: ElementSpec, eval_spec: ElementSpec = None) -> None:
        """Create all variables, by tracing a step that never runs: for each spec that is not None.

        Evaluation is traced where its step may return other values than the training step.
        """
        if self._train_step is not None and train_spec is not None:
            self._refuse_tables()
        self._train_spec, self._eval_spec = train_spec, eval_spec
        self.element_spec = eval_spec if train_spec is None else train_spec
        with describe_large_variables():
            if train_spec is not None:
                self._note_names(self._user_step.train, train_spec)
            if eval_spec is not None:
                self._note_names(self._user_step.evaluate, eval_spec)
        metrics = self._user_step.all_metrics()
        for metric in metrics:
            # An earlier call of `fit` has left its sums.
            metric.reset_state()
        self.report.metric_variables = [v for metric in metrics for v in metric.variables]
        if self._train_step is not None and train_spec is not None:
            self._refuse_tables()
            self._analysis = self._analyze(self._train_step, train_spec)
        if self._test_step is not None and eval_spec is not None:
            self._analyze(self._test_step, eval_spec)
        self._check_metrics()

    def _refuse_tables(self) -> None:
        """Raise an error if the model overrides `train_step`, and has sparse tables."""
        if tables := [v.path for v in self.model.trainable_variables if is_table(v)]:
            raise ConfigurationError(
                f"{type(self.model).__name__} overrides train_step, but {tables[0]} is a sparse "
                "table, whose gradients only Phalanx computes: use keras.layers.Embedding, or "
                "write train_step(model, batch) in the experiment"
            )

    def _analyze(self, step: ModelStep, element_spec: ElementSpec) -> StepAnalysis:
        variables = [v for v in _list_variables(self.model) if not is_seed(v)]
        analysis = analyze(step, element_spec, variables, self._user_step.all_metrics())
        self._results[step.method] = analysis.results
        return analysis

    def _note_names(self, compute: ComputeValues, element_spec: ElementSpec) -> None:
        name, is_own = experiment_name(self.experiment), self.has_model_steps
        names = trace_names(compute, element_spec, name, needs_variables=is_own)
        self.report.names += sorted(set(names) - set(self.report.names))

    def _check_metrics(self) -> None:
        """Refuse a metric whose variables cannot be summed over batches and replicas."""
        metrics = [metric for metric in self._user_step.all_metrics() if needs_check(metric)]
        variables = [v for metric in metrics for v in metric.variables]
        others: list[KerasVariable] = []
        for compute, spec in self._steps() if variables else []:
            updates, _ = trace_updates(compute, spec, variables, self._model_variables())
            others += [u.variable for u in updates if not is_sum(u.after, u.before)]
        if (metric := find_metric(metrics, others)) is not None:
            raise refuse_metric(metric)

    def _model_variables(self) -> list[KerasVariable]:
        return list(getattr(self.model, "variables", ()))

    def _steps(self) -> list[tuple[ComputeValues, ElementSpec]]:
        """Return the functions that were built, each with the spec of its batches.

        A step that the model overrides is analyzed by itself.
        """
        steps = [
            (self._user_step.train, self._train_spec, self._train_step),
            (self._user_step.evaluate, self._eval_spec, self._test_step),
        ]
        return [(f, spec) for f, spec, own in steps if spec is not None and own is None]

    def make_host_variables(self) -> HostVariables:
        """Return the model's variables and its optimizer's, without the states of seed generators.

        Each step computes these from the number of the step.
        """
        if self.named:
            trainable = [v for v in self.named.values() if v.trainable]
            others = [v for v in self.named.values() if not v.trainable]
        else:
            trainable = list(self.model.trainable_variables)
            # The index of a growing table changes only after a step.
            others = [v for v in self.model.non_trainable_variables if not is_index(v)]
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
        gradients = GradientTrace()
        if self._train_spec is not None:
            variables = [*trainable, *state, *seeds]
            updates, read = trace_updates(
                self._user_step.train, self._train_spec, variables, self._model_variables()
            )
            if self._num_tasks > 1:
                known = [*variables, *self._model_variables(), *self.report.metric_variables]
                warn_of_copies(read, known)
            check_assigned(updates[: len(trainable)])
            of_state = updates[len(trainable) : len(trainable) + len(state)]
            fixed = frozenset(i for i, u in enumerate(of_state) if u.after is u.before)
            drawn = updates[len(trainable) + len(state) :]
            self.seeds = SeedStates([(u.variable, u.assignments) for u in drawn])
            gradients = self._trace_gradients(updates[: len(trainable)])
        # An evaluation needs no slots, which would take more memory than the weights.
        optimizer = self.optimizer if self._train_spec is not None else keras.optimizers.SGD(0.0)
        host_variables = HostVariables(
            trainable, state, optimizer, gradients.disconnected, gradients.sparse, fixed,
            trains=self._train_spec is not None,
        )  # fmt: skip
        host_variables.build()
        return host_variables

    def _make_model_step_variables(
        self, trainable: list[KerasVariable], others: list[KerasVariable]
    ) -> HostVariables:
        """Return the variables for a `train_step` of the model; its analysis says what trains."""
        seeds = [v for v in others if is_seed(v)] + find_global_seed()
        draws = {} if self._analysis is None else self._analysis.assignments
        self.seeds = SeedStates([(seed, draws.get(id(seed), 0)) for seed in seeds])
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

    def _trace_gradients(self, updates: Sequence[Update]) -> GradientTrace:
        """Return what the gradients of a training step are, from what it does to the weights.

        Keras does not update weights that the loss does not depend on. Weight decay would change
        them, and so would Ftrl. Most optimizers treat each lookup of a row by itself. To find out
        costs a trace, which is made only where it matters.
        """
        optimizer = inner_optimizer(self.optimizer)
        is_ftrl = isinstance(optimizer, keras.optimizers.Ftrl)
        looks_up = needs_lookups(optimizer) and has_lookups(updates)
        if optimizer.weight_decay is None and not is_ftrl and not looks_up:
            return GradientTrace()
        trainable = [update.variable for update in updates]

        def compute_loss(batch: Batch) -> Tensor:
            return _reduce(self._user_step.train(batch), batch)[0]["loss"]

        found = trace_gradients(compute_loss, self._train_spec, trainable)
        if found.disconnected and is_ftrl:
            positions = sorted(found.disconnected)
            names = ", ".join(trainable[position].path for position in positions)
            raise ConfigurationError(
                f"the loss does not depend on {names}, and Ftrl sets a weight without gradients to "
                "zero: set trainable = False for its layer, or use another optimizer"
            )
        return found if looks_up else found._replace(sparse=frozenset())

    def call_user_step(self, batch: Batch) -> dict[str, Tensor]:
        """Call the user's training step alone, with the variables of the caller's scope."""
        return self._user_step.train(batch)

    @unconverted
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
            report = tf.zeros([self.report_size])
            return StepResult(variables.zero_gradients(), changed, report, variables.no_sightings())
        if self._train_step is not None:
            return self._train_by_model_step(variables, buffers, state, batch, replica, step)
        sparse = variables.sparse_buffers()
        dense = [index for index in range(len(buffers)) if not variables.is_sparse(index)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([buffers[index] for index in dense])
            lookups = variables.prepare_lookups(buffers, tape)
            with self._scope(variables, buffers, state, replica, step) as scope, lookups.activate():
                values, count = _reduce(self._user_step.train(batch), batch)
            objective = variables.scale_loss(values["loss"])
        computed = tape.gradient(
            objective,
            [*(buffers[index] for index in dense), *lookups.rows],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        by_buffer = dict(zip(dense, computed, strict=False))
        for index in set(dense) & set(variables.sparse_gradients()):
            by_buffer[index] = make_sparse(by_buffer[index])
        by_buffer |= lookups.gradients(
            computed[len(dense) :], {index: buffers[index] for index in sparse}
        )
        gradients = [by_buffer[index] for index in range(len(buffers))]
        new_state = [scope.get_current_value(v) for v in variables.host_variables.state]
        report = self.report.make(values, count, self._weigh(scope.get_current_value, count))
        report = self.report.add_norm(report, gradients, variables.scale_loss(tf.constant(1.0)))
        changed = variables.select_changing(variables.state_layout.flatten(new_state))
        return StepResult(gradients, changed, report, lookups.list_sightings())

    @unconverted
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
        pairs = zip(call.gradients, call.variables, strict=True)
        gradients = variables.layout.flatten([variables.convert_gradient(*pair) for pair in pairs])
        report = self._report_model_step(self._train_step, returned, batch, scope)
        report = self.report.add_norm(report, gradients, variables.scale_loss(tf.constant(1.0)))
        return StepResult(gradients, self._changed_state(variables, scope), report, [])

    @unconverted
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
        report = self.report.add_norm(report, updates.gradients, tf.constant(1.0))
        return StepResult([], self._changed_state(variables, scope), report, [])

    @unconverted
    def _changed_state(self, variables: DeviceVariables, scope: TapeScope) -> list[Tensor]:
        values = [scope.current(variable) for variable in variables.host_variables.state]
        return variables.select_changing(variables.state_layout.flatten(values))

    @unconverted
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
            values, count = _reduce(self._user_step.evaluate(batch), batch)
        return self.report.make(values, count, self._weigh(scope.get_current_value, count))

    @unconverted
    def _weigh(self, get_value: GetValue, count: Tensor) -> GetValue:
        """Read variables of metrics so that those of several replicas can be summed."""
        loss = getattr(self.model, "_compile_loss", None)
        if self._num_replicas == 1 or loss is None:
            return get_value
        return weigh_by_examples(loss.metrics, get_value, count)

    @property
    def report_size(self) -> int:
        return self.report.size

    def read_report(self, report: Array) -> dict[str, float]:
        """Return the means and metrics of a sum of reports."""
        results, sums = self.report.read_values(report), self.report.read_metrics(report)
        for variable in self.report.metric_variables:
            variable.assign(sums[id(variable)])
        # A train_step or eval_step that the user writes in the experiment updates no metrics.
        is_own = any(is_written(self.experiment, name) for name in ("train_step", "eval_step"))
        shows_metrics = (
            self.has_model_steps or not is_own or any(value.any() for value in sums.values())
        )
        for method, exact in self._results.items():
            if own := find_labeled(method, results):
                results, shows_metrics = own | exact.compute(sums), False
        computed = self._user_step.compute_metrics() if shows_metrics else {}
        for name, value in computed.items():
            if name != "loss" and np.ndim(value) == 0:
                results[name] = float(value)
            elif name not in self._hidden and name != "loss":
                self._hidden.add(name)
                LOG.warning(
                    "the metric %s has the shape %s, and is not shown: only single numbers are; "
                    "set its average, for example to \"macro\"",
                    name, tuple(np.shape(value)),
                )  # fmt: skip
        if (norm := self.report.read_norm(report)) is not None:
            results["gradient_norm"] = norm
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
        mapping += [(v, tf.zeros(v.shape, v.dtype)) for v in self.report.metric_variables]
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

        metrics = [*self.report.metric_variables, *model_step.unlisted_variables()]
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

    def _report_model_step(
        self, model_step: ModelStep, returned: Mapping[str, Tensor], batch: Batch, scope: TapeScope
    ) -> Tensor:
        values, count = _reduce(label_values(model_step, returned), batch)
        # What the session shows, and checks for NaN.
        numbers = [tf.cast(value, tf.float32) for value in values.values()]
        values["loss"] = values.get(f"{model_step.method}/loss", tf.add_n(numbers))
        return self.report.make(values, count, self._weigh(scope.current, count))


def _list_variables(model: Model) -> list[KerasVariable]:
    """Return the variables of a Keras model with the state of its recurrent layers."""
    return [*model.variables, *(v for layer in stateful_layers(model) for v in layer.states)]


def stateful_layers(model: Model) -> list[Layer]:
    """Return the recurrent layers that keep their state from batch to batch.

    Keras does not count that state among the variables of the model.
    """
    layers = model._flatten_layers() if isinstance(model, keras.Model) else []
    return [layer for layer in layers if isinstance(layer, keras.layers.RNN) and layer.stateful]


def _reduce(values: dict[str, Tensor], batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Return the mean of each value over a batch, and the number of its examples."""
    count = tf.cast(batch_length(batch), tf.float32)
    return {name: mean_over_batch(value, batch, name) for name, value in values.items()}, count
