"""What a step does, found by traces that never run."""

import logging
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from phalanx.errors import ConfigurationError, PhalanxError
from phalanx.train.autograph import unconverted
from phalanx.train.step.seeds import CountingScope
from phalanx.train.types import Batch, ElementSpec, KerasVariable, Tensor
from phalanx.train.variables.described_variable import refer_by_description
from phalanx.train.variables.large_variable import LargeVariable
from phalanx.train.variables.sparse_tables import TracedLookups, is_index, is_table

LOG = logging.getLogger("phalanx")

ComputeValues: TypeAlias = Callable[[Batch], dict[str, Tensor]]
"""A step of the user: returns its values for a batch, by name."""

# How the errors of Keras read when a layer or model gets input that it was not built for.
_MISFIT = re.compile(
    r"^.*(is incompatible with the layer|Invalid input shape|doesn't match the expected).*$", re.M
)
# Keras prints its messages in bold.
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Update(NamedTuple):
    """A variable with its symbolic values before and after a step."""

    variable: KerasVariable
    before: Tensor
    after: Tensor
    assignments: int


class Trace(NamedTuple):
    """What a step does to variables, and all variables of TensorFlow that it reads."""

    updates: list[Update]
    read: list[tf.Variable]


class GradientTrace(NamedTuple):
    """What the gradients of a step are, by the positions of the weights."""

    disconnected: frozenset[int] = frozenset()
    """The weights that the loss does not depend on."""
    sparse: frozenset[int] = frozenset()
    """The weights of which the loss depends on some rows only: their gradients are sparse."""


def trace_names(
    compute: ComputeValues,
    element_spec: ElementSpec,
    experiment: str,
    needs_variables: bool = False,
) -> list[str]:
    """Return the names of the values of a step. This creates all variables."""
    names: list[str] = []
    try:
        with TracedLookups(needs_variables=needs_variables).activate():
            function = tf.function(unconverted(lambda batch: names.extend(compute(batch))))
            function.get_concrete_function(element_spec)
    except PhalanxError as error:
        # AutoGraph prefixes the message with a traceback.
        message = str(error).rpartition(f"{type(error).__name__}: ")[2].strip()
        raise type(error)(message) from None
    except ValueError as error:
        if "singleton tf.Variable" in str(error):
            raise ConfigurationError(
                f"{experiment} creates variables each time it is called: create them once, in "
                "model() or in a layer's build()"
            ) from error
        if misfit := _MISFIT.search(str(error)):
            raise ConfigurationError(
                f"the model of {experiment} does not accept the batches of the data "
                f"({_describe(element_spec)}): {_STYLE.sub('', misfit.group()).strip()} Check that "
                "the data is batched and has the right shape"
            ) from error
        raise
    return names


def trace_updates(
    compute: ComputeValues,
    element_spec: ElementSpec,
    variables: Sequence[KerasVariable],
    others: Sequence[KerasVariable],
) -> Trace:
    """Return what a step does to variables; it may read others."""
    updates: list[Update] = []

    @unconverted
    def trace(batch: Batch) -> None:
        # Regularizers read the value of their weight from the scope.
        mapped = {id(v): v for v in [*variables, *others]}
        is_read = [
            v for v in mapped.values() if not is_table(v) or not (v.trainable or is_index(v))
        ]
        lookups = TracedLookups()
        with lookups.activate():
            mapping = [(v, tf.identity(v.value)) for v in is_read]
        with CountingScope(mapping) as scope, lookups.activate():
            before = [scope.get_current_value(variable) for variable in variables]
            compute(batch)
        updates.extend(
            Update(variable, old, scope.get_current_value(variable), scope.count(variable))
            for variable, old in zip(variables, before, strict=True)
        )

    function = tf.function(trace).get_concrete_function(element_spec)
    return Trace(updates, list(function.graph.variables))


def warn_of_copies(read: Sequence[tf.Variable], known: Sequence[KerasVariable]) -> None:
    """Name the variables that a step reads although they belong to no model.

    Every task has a copy of its own of these.
    """
    with refer_by_description():
        ids = {id(variable.value) for variable in known if not is_table(variable)}
    if names := sorted({variable.name for variable in read if id(variable) not in ids}):
        LOG.warning(
            "the step reads %s, which is no part of the model: what a callback assigns to it does "
            "not reach the other tasks; make it an attribute of the model",
            ", ".join(names),
        )


def has_lookups(updates: Sequence[Update]) -> bool:
    """Whether a step looks up rows in any of these variables, which may give a sparse gradient."""
    waiting = [update.before for update in updates if not is_table(update.variable)]
    while waiting:
        for operation in waiting.pop().consumers():
            if operation.type == "GatherV2":
                return True
            if operation.type in ("Identity", "Cast"):
                waiting += operation.outputs
    return False


def trace_gradients(
    compute_loss: Callable[[Batch], Tensor],
    element_spec: ElementSpec,
    trainable: Sequence[KerasVariable],
) -> GradientTrace:
    """Return what the gradients of a loss are."""
    found: dict[int, Tensor] = {}

    @unconverted
    def trace(batch: Batch) -> None:
        dense = [variable for variable in trainable if not is_table(variable)]
        lookups = TracedLookups()
        with tf.GradientTape() as lookups.tape, lookups.activate():
            large = {id(v): v for v in dense if isinstance(v, LargeVariable)}
            lookups.values = {key: lookups.read(variable) for key, variable in large.items()}
            lookups.tape.watch(list(lookups.values.values()))
            loss = compute_loss(batch)
            sources = [*(variable.value for variable in dense), *lookups.rows]
        ids = [*(id(variable) for variable in dense), *lookups.tables]
        gradients = zip(ids, lookups.tape.gradient(loss, sources), strict=True)
        found.update((number, gradient) for number, gradient in gradients if gradient is not None)

    tf.function(trace).get_concrete_function(element_spec)
    weights = list(enumerate(trainable))
    return GradientTrace(
        frozenset(position for position, weight in weights if id(weight) not in found),
        frozenset(
            position
            for position, weight in weights
            if not is_table(weight) and isinstance(found.get(id(weight)), tf.IndexedSlices)
        ),
    )


def check_assigned(updates: Sequence[Update]) -> None:
    """Refuse a model whose step assigns trainable weights: only the optimizer may change them."""
    for variable, before, after, _ in updates:
        if after is not before:
            raise ConfigurationError(
                f"a layer of the model assigns its trainable weight {variable.path} when it is "
                "called, as keras.layers.SpectralNormalization does: this would be lost, because a "
                "step changes trainable weights by gradients only. Compute the value that you need "
                "from the weight instead of assigning it, or make the weight non-trainable"
            )


def _describe(element_spec: ElementSpec) -> str:
    specs = tf.nest.flatten(element_spec)
    return ", ".join(f"{tuple(spec.shape)} {spec.dtype.name}" for spec in specs)
