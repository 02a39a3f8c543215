"""What a model step does: which optimizers it calls, what it assigns, what it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.step.metric_sums import is_sum, needs_check, refuse_metric
from phalanx.train.step.model_step import ModelStep
from phalanx.train.step.optimizer_calls import OptimizerCall
from phalanx.train.step.seeds import is_seed
from phalanx.train.step.tape_scope import TapeScope
from phalanx.train.types import (
    Array,
    Batch,
    ElementSpec,
    KerasVariable,
    Metric,
    Model,
    Optimizer,
    Tensor,
    TFFunction,
)
from phalanx.train.variables.host_variables import (
    HostVariables,
    built_variables,
    inner_optimizer,
    needs_lookups,
)

_ASSIGNMENTS = (
    "AssignVariable",
    "AssignAddVariable",
    "AssignSubVariable",
    "ResourceScatter",
    "ResourceApply",
    "ResourceSparseApply",
)


@dataclass(frozen=True)
class Results:
    """The values that a step computes from its metrics, as a function of the metrics' sums."""

    variables: Sequence[KerasVariable] = ()
    function: TFFunction = None

    def compute(self, sums: Mapping[int, Array]) -> dict[str, float]:
        """Return the values; `sums` has the variables of the metrics by id."""
        if self.function is None:
            return {}
        arguments = [tf.constant(sums[id(v)], tf.as_dtype(v.dtype)) for v in self.variables]
        values = self.function(*arguments).items()
        return {name: float(value) for name, value in values if np.ndim(value) == 0}


@dataclass(frozen=True)
class StepAnalysis:
    """What a step does, found by a trace that never runs.

    Attributes:
        step: The step.
        calls: The calls of optimizers. Of their gradients, only their types are of use.
        assignments: How often the step assigns each variable itself, by id. To draw a random
            number is to assign the state of its seed generator.
        reads_updates: Whether it reads what a call has changed.
        results: What it computes from its metrics.
    """

    step: ModelStep
    calls: list[OptimizerCall]
    assignments: Mapping[int, int]
    reads_updates: bool
    results: Results

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that the step calls, each once."""
        return list({id(call.optimizer): call.optimizer for call in self.calls}.values())

    @property
    def updates_in_place(self) -> bool:
        """Whether the calls must be executed one by one, where the step makes them.

        Otherwise there is one call, and the update may as well follow the step.
        """
        if len(self.calls) != 1 or self.reads_updates:
            return True
        call = self.calls[0]
        built = [id(variable) for variable in built_variables(call.optimizer)]
        own = {id(variable) for variable in (*call.variables, *call.optimizer.variables)}
        return built != [id(v) for v in call.variables] or bool(own & self.assignments.keys())

    def describe_updates(self) -> str:
        """Say why the step updates in place, for messages."""
        names = [self.step.name_of(call.optimizer) for call in self.calls]
        if len(names) > 1:
            return f"{self.step.label} calls optimizers several times ({', '.join(names)})"
        return (
            f"{self.step.label} reads or assigns weights that {names[0]} has updated, or updates "
            "only some of the weights that it was built with"
        )

    def make_host_variables(
        self, model: Model, trainable: Sequence[KerasVariable], state: Sequence[KerasVariable]
    ) -> HostVariables:
        """Return the variables of the model: those that optimizers were built with are trained."""
        optimizers = self.optimizers
        compiled = getattr(model, "optimizer", None)
        trained = {id(v): v for optimizer in optimizers for v in built_variables(optimizer)}
        others = [v for v in (*trainable, *state) if id(v) not in trained]
        missing = [i for i, g in enumerate(self.calls[0].gradients) if g is None]
        looked_up = {
            id(variable)
            for call in self.calls
            for variable, gradient in zip(call.variables, call.gradients, strict=True)
            if isinstance(gradient, tf.IndexedSlices) and needs_lookups(call.optimizer)
        }
        return HostVariables(
            list(trained.values()),
            others,
            next((o for o in optimizers if o is compiled), optimizers[0]),
            frozenset() if self.updates_in_place else frozenset(missing),
            frozenset(i for i, key in enumerate(trained) if key in looked_up),
            frozenset(i for i, v in enumerate(others) if id(v) not in self.assignments),
            optimizers=optimizers if self.updates_in_place else [],
            # `fit` finalizes no other optimizer.
            finalizes=any(optimizer is compiled for optimizer in optimizers),
        )


@dataclass
class _Trace:
    """What one trace of a step has found."""

    calls: list[OptimizerCall] = field(default_factory=list)
    updated: set[int] = field(default_factory=set)
    """The ids of the variables that a call has changed."""
    reads_updates: bool = False
    values: dict[str, Tensor] = field(default_factory=dict)
    starts: dict[int, Tensor] = field(default_factory=dict)
    """The values of the metrics' variables before the step, by id."""
    ends: dict[int, Tensor] = field(default_factory=dict)
    """Their values after the step."""
    assignments: Mapping[int, int] = field(default_factory=dict)


def analyze(
    step: ModelStep,
    element_spec: ElementSpec,
    variables: Sequence[KerasVariable],
    metrics: Sequence[Metric],
) -> StepAnalysis:
    """Trace a step with a placeholder for each variable; its variables must exist by now."""
    listed = [v for metric in metrics for v in metric.variables]
    unlisted = step.unlisted_variables()
    trace = _Trace()

    def run(*components: Tensor) -> None:
        batch = tf.nest.pack_sequence_as(element_spec, components, expand_composites=True)
        _trace(step, batch, variables, [*listed, *unlisted], trace)

    flat = tf.nest.flatten(element_spec, expand_composites=True)
    function = tf.compat.v1.wrap_function(run, flat)
    if not trace.calls and step.method == "train_step":
        raise ConfigurationError(
            f"{step.label} calls none of the model's optimizers, so that nothing is trained: call "
            "self.optimizer.apply(gradients, variables)"
        )
    _check_assignments(step, function.graph)
    for metric in filter(needs_check, metrics):
        if any(
            np.any(v.numpy()) or not is_sum(trace.ends[id(v)], trace.starts[id(v)])
            for v in metric.variables
        ):
            raise refuse_metric(metric)
    results = _find_results(step, function, trace, listed, unlisted)
    return StepAnalysis(step, trace.calls, trace.assignments, trace.reads_updates, results)


def _trace(
    step: ModelStep,
    batch: Batch,
    variables: Sequence[KerasVariable],
    metric_variables: Sequence[KerasVariable],
    trace: _Trace,
) -> None:
    optimizers = step.optimizers.values()
    optimizer_variables = {id(v) for optimizer in optimizers for v in optimizer.variables}
    # A call does not change a learning rate that is a number.
    rates = {id(inner_optimizer(optimizer)._learning_rate) for optimizer in optimizers}

    def find_value(variable: KerasVariable) -> Tensor | None:
        is_known = id(variable) in optimizer_variables or is_seed(variable)
        return _placeholder(variable) if is_known else None

    trace.starts = {id(v): _placeholder(v) for v in metric_variables}
    scope = TapeScope(
        [(v, _placeholder(v)) for v in variables],
        [(v, trace.starts[id(v)]) for v in metric_variables],
        find_value,
        step.refuse_assignment,
    )

    def note_reads() -> None:
        trace.reads_updates |= bool(scope.read & trace.updated)
        scope.read.clear()

    def handle(call: OptimizerCall) -> None:
        if step.method == "test_step":
            step.refuse_call(call)
        if all(gradient is None for gradient in call.gradients):
            raise ConfigurationError(
                f"{step.label} calls {step.name_of(call.optimizer)} with gradients that are all "
                "None: compute the loss inside the `with tf.GradientTape()` block"
            )
        note_reads()
        trace.calls.append(call)
        changed = {id(v) for v in (*call.variables, *call.optimizer.variables)}
        trace.updated |= changed - rates

    with scope:
        returned = step.run(batch, handle)
        trace.values = {name: tf.convert_to_tensor(value) for name, value in returned.items()}
    note_reads()
    trace.ends = {id(v): scope.current(v) for v in metric_variables}
    trace.assignments = scope.assignments


def _find_results(
    step: ModelStep,
    function: TFFunction,
    trace: _Trace,
    listed: Sequence[KerasVariable],
    unlisted: Sequence[KerasVariable],
) -> Results:
    """Find the values that depend on the metrics alone, as the step leaves them."""
    ends = {trace.ends[id(v)].name: v for v in listed}
    early = {trace.starts[id(v)].name for v in listed} - set(ends)
    never_reset = {tensors[id(v)].name for v in unlisted for tensors in (trace.starts, trace.ends)}
    fetches: dict[str, Tensor] = {}
    needed: set[str] = set()
    for name, value in trace.values.items():
        origins = _find_origins(value, {*ends, *never_reset})
        if origins & never_reset:
            raise ConfigurationError(
                f"{step.label} returns {name}, the result of a metric that is not in the model's "
                "metrics, so that it is never reset: add it to the property metrics"
            )
        results = origins & set(ends)
        if origins & early or (results and results != origins):
            raise ConfigurationError(
                f"{step.label} returns {name}, which depends on a metric and on something else, or "
                "on a metric before its update: return the result of a metric after its update, or "
                "a value without metrics"
            )
        if results:
            fetches[name] = value
            needed |= results
    if not fetches:
        return Results()
    feeds = sorted(needed)
    tensors = [function.graph.get_tensor_by_name(name) for name in feeds]
    return Results([ends[name] for name in feeds], function.prune(tensors, fetches))


def _find_origins(tensor: Tensor, ends: Collection[str]) -> set[str]:
    """Return the names of the placeholders and of the `ends` that a tensor is computed from."""
    waiting, seen, origins = [tensor], set(), set()
    while waiting:
        value = waiting.pop()
        if value.name in seen:
            continue
        seen.add(value.name)
        if value.name in ends or value.op.type == "Placeholder":
            origins.add(value.name)
        else:
            waiting += value.op.inputs
    return origins


def _check_assignments(step: ModelStep, graph: tf.Graph) -> None:
    """Refuse assignments to variables of TensorFlow, of which no scope knows."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    if any(node.op.startswith(_ASSIGNMENTS) for node in nodes):
        names = ", ".join(sorted(variable.name for variable in graph.variables)) or "?"
        raise ConfigurationError(
            f"{step.label} assigns a tf.Variable ({names}), which is neither sent to other tasks "
            "nor to devices: create it with self.add_weight(trainable=False)"
        )


def _placeholder(variable: KerasVariable) -> Tensor:
    return tf.compat.v1.placeholder(variable.dtype, variable.shape)
