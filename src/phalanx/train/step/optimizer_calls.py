"""The calls of optimizers in a `train_step`, which are handled instead of executed."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import keras

from phalanx.train.types import KerasVariable, Model, Optimizer, Tensor
from phalanx.train.variables.host_variables import built_variables


@dataclass(frozen=True)
class OptimizerCall:
    """One call of `apply`: an optimizer, variables, and a gradient of each, or None."""

    optimizer: Optimizer
    gradients: list[Tensor]
    variables: list[KerasVariable]


HandleCall: TypeAlias = Callable[[OptimizerCall], None]

_HANDLER: ContextVar[HandleCall | None] = ContextVar("handler", default=None)
_LOCK = threading.Lock()
_USERS: dict[int, int] = {}


@contextlib.contextmanager
def handle_calls(optimizers: Sequence[Optimizer], handle: HandleCall) -> Iterator[None]:
    """Call a handler whenever this thread calls `apply` or `apply_gradients` of an optimizer."""
    with _LOCK:
        for optimizer in optimizers:
            # An attribute of the object hides the method; the optimizer must not track it.
            optimizer.__dict__["apply"] = partial(_dispatch, optimizer)
            _USERS[id(optimizer)] = _USERS.get(id(optimizer), 0) + 1
    token = _HANDLER.set(handle)
    try:
        yield
    finally:
        _HANDLER.reset(token)
        with _LOCK:
            for optimizer in optimizers:
                _USERS[id(optimizer)] -= 1
                if not _USERS[id(optimizer)]:
                    del _USERS[id(optimizer)], optimizer.__dict__["apply"]


def _dispatch(
    optimizer: Optimizer, grads: Sequence[Tensor], trainable_variables: Any = None
) -> None:
    handle = _HANDLER.get()
    if handle is None:
        type(optimizer).apply(optimizer, grads, trainable_variables)
        return
    if trainable_variables is None:
        trainable_variables = built_variables(optimizer)
    if grads:
        handle(OptimizerCall(optimizer, list(grads), list(trainable_variables)))


def find_optimizers(model: Model) -> dict[str, Optimizer]:
    """Return the optimizers that are attributes of a model or of its layers, by name."""
    found: dict[int, tuple[str, Optimizer]] = {}
    for layer in model._flatten_layers():
        # Public names first: TensorFlow keeps the same objects under names of its own.
        for name, value in sorted(vars(layer).items(), key=lambda item: item[0][:1] == "_"):
            # Inside a LossScaleOptimizer, Keras keeps the optimizer here that it was made of.
            if name != "_compile_config":
                for leaf in _flatten(value):
                    found.setdefault(id(leaf), (name, leaf))
    names: dict[str, Optimizer] = {}
    for name, optimizer in found.values():
        names[name if name not in names else f"{name} {len(names)}"] = optimizer
    return names


def _flatten(value: Any) -> Iterator[Optimizer]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _flatten(part)
