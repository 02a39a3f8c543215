"""Custom steps, which compute and apply gradients themselves, their variables and their data."""

import contextlib
import inspect
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.context import Context
from phalanx.train.custom_loop.task_spec import TaskSpecDef
from phalanx.train.experiment import call
from phalanx.train.runtime.worker_data import calls_python, read_graph, shuffles_before_shard
from phalanx.train.step.report_values import batch_length, read_means, sum_values
from phalanx.train.types import (
    Array,
    Batch,
    Dataset,
    ElementSpec,
    GraphDef,
    KerasVariable,
    Optimizer,
    StepValues,
    Tensor,
    TFVariable,
    UserFunction,
)

LOG = logging.getLogger("phalanx")

# The number of values that the steps of one session can report beside the loss.
_MAX_VALUES = 16


@dataclass
class CustomVariables:
    """All variables that were created in the scope of a session, by name."""

    created: dict[str, TFVariable] = field(default_factory=dict)
    copies: dict[str, KerasVariable] = field(default_factory=dict)
    """Their copies on the host, which are saved and restored."""

    @contextlib.contextmanager
    def track(self) -> Iterator[None]:
        """Track each variable that is created in the `with` block."""

        def create(next_creator: UserFunction, **settings: Any) -> TFVariable:
            variable = next_creator(**settings)
            name = variable.name.partition(":")[0]
            while name in self.created:
                name += "_again"
            self.created[name] = variable
            return variable

        with tf.variable_creator_scope(create):
            yield

    @contextlib.contextmanager
    def forbid_new(self) -> Iterator[None]:
        """Raise if a variable is created, because it would be neither saved nor restored."""

        def refuse(next_creator: UserFunction, **settings: Any) -> TFVariable:
            raise ConfigurationError(
                f"the step creates a variable ({settings.get('name') or 'unnamed'}): create all "
                "variables before, in session.scope(); build the model there, and the optimizer "
                "with optimizer.build(model.trainable_variables)"
            )

        with tf.variable_creator_scope(refuse):
            yield

    def make_copies(self) -> None:
        if not self.created:
            raise ConfigurationError(
                "no variable was created in session.scope(): create the model and the optimizer "
                "there"
            )
        for name, variable in self.created.items():
            self.copies[name] = keras.Variable(
                variable.numpy(), dtype=variable.dtype.name, trainable=False
            )

    def push(self) -> None:
        """Assign the copies to the variables on the devices."""
        for name, copy in self.copies.items():
            self.created[name].assign(copy.numpy())

    def pull(self) -> None:
        """Assign the variables on the devices to the copies."""
        for name, copy in self.copies.items():
            copy.assign(self.created[name].numpy())

    def model_variables(self) -> list[KerasVariable]:
        return list(self.copies.values())

    def learning_rate(self) -> float:
        """Return the learning rate of the first optimizer; NaN if there is none."""
        rate = self._find_learning_rate()
        return float("nan") if rate is None else float(rate.numpy())

    def set_learning_rate(self, value: float) -> None:
        rate = self._find_learning_rate()
        if rate is None:
            raise ConfigurationError("no optimizer in session.scope() has a learning rate to set")
        rate.assign(value)

    def _find_learning_rate(self) -> TFVariable | None:
        return next((v for name, v in self.created.items() if name.endswith("learning_rate")), None)


@dataclass(frozen=True)
class SessionData:
    """The function that the user passed to `session.dataset`."""

    make: UserFunction
    task_spec: TaskSpecDef

    def make_shard(self, context: Context) -> Dataset:
        """Build the dataset of one worker."""
        with self.task_spec.reading_shard(context):
            data = call(self.make, context)
        if tf.executing_eagerly():
            _warn_of_shuffle(read_graph(data), context)
        return data

    def check_can_be_sent(self, context: Context) -> None:
        """Check that workers can run the function; a dataset object cannot be sent to them."""
        function = tf.function(lambda: self.make_shard(context), autograph=False)
        traced = function.get_concrete_function()
        if any(tensor.dtype == tf.variant for tensor in traced.captured_inputs):
            raise ConfigurationError(
                "the function passed to session.dataset uses a dataset that was created outside of "
                "it, which cannot be sent to the workers: create the whole dataset inside the "
                "function"
            )
        graph = traced.graph.as_graph_def()
        if calls_python(graph):
            raise ConfigurationError(
                "the function passed to session.dataset calls Python (from_generator, py_function, "
                "numpy_function), which cannot be sent to the workers: use only operations of "
                "TensorFlow, or phalanx.run, where each worker creates its data itself"
            )
        _warn_of_shuffle(graph, context)


def _warn_of_shuffle(graph: GraphDef, context: Context) -> None:
    if context.num_shards > 1 and shuffles_before_shard(graph):
        LOG.warning(
            "the data is shuffled before it is sharded, so workers read some examples twice and "
            "others never: shard first, then shuffle"
        )


class CustomStep:
    """The reports of the steps that a user writes: sums over replicas, steps and hosts."""

    model: None = None
    experiment: None = None
    optimizer: None = None
    optimizers: tuple[Optimizer, ...] = ()
    updates_in_place = False
    report_size = 1 + 2 * (1 + _MAX_VALUES)

    def __init__(self, variables: CustomVariables) -> None:
        self.variables = variables
        self.element_spec: ElementSpec = None
        self._names = ["loss"]

    @property
    def named(self) -> dict[str, KerasVariable]:
        return self.variables.copies

    def report(self, returned: StepValues, batch: Batch | None) -> Tensor:
        """Return the report of what a step returned: a loss, or a dict with it."""
        values = dict(returned) if isinstance(returned, dict) else {"loss": returned}
        if values.get("loss") is None:
            raise ConfigurationError(
                f"the step returned {returned!r}: return the loss, or a dict with the key 'loss'"
            )
        # Several steps of one session, each with other values, share one report.
        self._names += sorted(set(values) - set(self._names))
        if len(self._names) > 1 + _MAX_VALUES:
            raise ConfigurationError(
                f"the steps report {len(self._names) - 1} values beside the loss: report at most "
                f"{_MAX_VALUES}"
            )
        count = tf.cast(batch_length(batch), tf.float32) if batch is not None else 1.0
        means = {n: tf.reduce_mean(tf.cast(value, tf.float32)) for n, value in values.items()}
        return tf.stack([count, *sum_values(self._padded_names(), means, count)])

    def read_report(self, report: Array) -> dict[str, float]:
        """Return the means over all examples of a sum of reports."""
        return read_means(self._padded_names(), report[1:])

    def _padded_names(self) -> list[str]:
        return [*self._names, *[""] * (1 + _MAX_VALUES - len(self._names))]


def call_step(step: UserFunction, batch: Batch | None) -> StepValues:
    """Call a step with a batch, or without one if the session has no data."""
    if batch is None and inspect.signature(step).parameters:
        raise ConfigurationError(
            "the step takes a batch, but the session has no data: pass it to session.dataset(...)"
        )
    return step() if batch is None else step(batch)
