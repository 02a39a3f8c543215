"""Prediction on a cluster: each task predicts its batches, and the chief puts them in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any

import keras
import numpy as np

from phalanx.train.config import RunConfig
from phalanx.train.context import Context
from phalanx.train.keras_fit.experiment import FitData, SharedData, no_batch
from phalanx.train.runtime.failures import propagate_failures
from phalanx.train.runtime.joining import open_channel
from phalanx.train.runtime.peers import run_server
from phalanx.train.runtime.program_calls import ProgramCalls, program_calls
from phalanx.train.runtime.topology import Topology
from phalanx.train.types import Batch, Model

Outputs = Any
"""What the model returns for a batch, as NumPy arrays."""


def predict_together(
    model: Model,
    data: FitData,
    topology: Topology,
    config: RunConfig,
    callbacks: Any = None,
    *,
    verbose: int | str = 0,
    exits: bool = True,
) -> Outputs:
    """Predict with all trainers of a cluster, and with the chief; return the whole result."""
    calls = program_calls(topology, config.wait_seconds)
    batches = data.share(0)
    with propagate_failures(topology, open_channel(topology), releases=False):
        if topology.is_chief:
            return _lead(model, batches, calls, callbacks, verbose=verbose, exits=exits)
        if topology.strategy.has_ps:
            is_trainer = topology.task in topology.trainers
            run_server(
                topology,
                config,
                open_channel(topology),
                arrive=lambda: calls.arrive("predict", batches.order) if is_trainer else None,
            )
        else:
            calls.arrive("predict", batches.order)
    if topology.task in calls.others:
        _help(model, batches, calls)
    [outputs] = calls.receive()
    return outputs


def _lead(
    model: Model,
    data: SharedData,
    calls: ProgramCalls,
    callbacks: Any,
    *,
    verbose: int | str,
    exits: bool,
) -> Outputs:
    calls.begin("predict", data.order)
    started = time.monotonic()
    batches = _open(data, calls)
    first = next(batches, None)
    if first is None:
        raise no_batch("predict")
    outputs = [model.predict_on_batch(first)]
    # The model has all its weights only after it has seen a batch.
    calls.broadcast([np.asarray(weight.numpy()) for weight in model.weights])
    outputs += map(model.predict_on_batch, batches)
    shares = [outputs, *calls.gather(time.monotonic() - started)]
    missing = object()
    turns = chain.from_iterable(zip_longest(*shares, fillvalue=missing))
    ordered = [batch for batch in turns if batch is not missing]
    _call(callbacks, model, ordered)
    result = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *ordered)
    calls.end(result, exits=exits)
    if verbose not in (0, "0"):
        print(f"{len(ordered)} batches predicted by {len(shares)} tasks")
    return result


def _help(model: Model, data: SharedData, calls: ProgramCalls) -> None:
    with propagate_failures(calls.topology, calls.channel, releases=False):
        batches = _open(data, calls)
        first = next(batches, None)
        if first is not None:
            model.predict_on_batch(first)
        weights = calls.receive()
        outputs = []
        if first is not None:
            model.set_weights(weights)
            outputs = [model.predict_on_batch(batch) for batch in chain([first], batches)]
        calls.send_to_chief(outputs)


def _open(data: SharedData, calls: ProgramCalls) -> Iterator[Batch]:
    """Return the inputs of this task's batches: with n tasks, of every n-th one."""
    tasks = [calls.topology.cluster.chief(), *calls.others]
    share = tasks.index(calls.topology.task)
    dataset = data.deal(Context(num_shards=len(tasks), shard=share), in_order=True)
    for batch in dataset:
        yield keras.utils.unpack_x_y_sample_weight(batch)[0]


def _call(callbacks: Any, model: Model, batches: list[Outputs]) -> None:
    """Call the methods of callbacks for each batch, in the order of the input."""
    listeners = keras.callbacks.CallbackList(callbacks, model=model)
    listeners.on_predict_begin()
    for number, batch in enumerate(batches):
        listeners.on_predict_batch_begin(number)
        listeners.on_predict_batch_end(number, {"outputs": batch})
    listeners.on_predict_end()
