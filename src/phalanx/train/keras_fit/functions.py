"""`fit`, `evaluate` and `predict`: what Keras' methods do, on whatever cluster there is."""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import array_slicing

from phalanx.cluster import Role, detect
from phalanx.data import Pipeline
from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig
from phalanx.train.console import explain_errors, show_log
from phalanx.train.hooks import CallbackHook, Hook
from phalanx.train.keras_fit.arguments import (
    check_model,
    check_numbers,
    check_validation,
    resolve_verbose,
)
from phalanx.train.keras_fit.experiment import DEFAULT_BATCH_SIZE, FitData, FitExperiment
from phalanx.train.keras_fit.prediction import predict_together
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.checkpoint import check_directory
from phalanx.train.runtime.joining import join_with_model
from phalanx.train.runtime.program_calls import program_calls
from phalanx.train.runtime.topology import Strategy, Topology, resolve_topology
from phalanx.train.task_run import TaskRun
from phalanx.train.types import Array, Callback, KerasVariable, Model


def fit(
    model: Model,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    model_dir: str | None = None,
    config: RunConfig | None = None,
    hooks: Sequence[Hook] = (),
    exit_other_tasks: bool = True,
) -> Callback:
    """Train a compiled model, as `model.fit` does, on the cluster that this process is part of.

        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = phalanx.fit(model, images, labels, epochs=3, validation_split=0.1)

    Every task of the cluster runs the same program. Data is given as to Keras: `batch_size`, and
    the batches of a dataset, are those of all replicas together, and the tasks share them. In a
    synchronous cluster each replica takes its part of each batch; asynchronous trainers take whole
    batches in turn. The arguments up to `validation_freq` are those of `model.fit`.

    A process cannot join a cluster after TensorFlow has made a tensor. So write `import phalanx` at
    the top of the program: it joins before the first tensor.

    Args:
        model: The compiled `keras.Model`. It is trained in place.
        x: The input: arrays, a `tf.data.Dataset` of batches, a `keras.utils.PyDataset`, a
            generator, or a `phalanx.data.Pipeline`.
        y: The targets, if `x` is arrays.
        batch_size: Examples per update, by default 32, if `x` is arrays or a pipeline.
        epochs: The number of the last epoch.
        verbose: 0 for nothing, 1 for a progress bar, 2 for a line per epoch. "auto" is 1 on a
            terminal and 2 elsewhere.
        callbacks: Keras callbacks. The chief calls them, and what they change takes effect on all
            replicas.
        validation_split: The fraction of the arrays, from their end, to evaluate instead of
            training on it.
        validation_data: The data to evaluate after each epoch.
        shuffle: Whether to shuffle arrays before each epoch.
        class_weight: The weight of each class in the loss.
        sample_weight: The weight of each example in the loss, if `x` is arrays.
        initial_epoch: The number of epochs that are done already.
        steps_per_epoch: After how many steps an epoch ends. By default, at the end of the data.
        validation_steps: How many batches to evaluate. By default all.
        validation_batch_size: Examples per batch to evaluate. By default `batch_size`.
        validation_freq: Evaluate every so many epochs, or after the epochs of a list.
        model_dir: A directory for checkpoints and summaries, from which a run that is started again
            continues. By default, nothing is kept. When the program trains the same model again,
            the second call uses the subdirectory `fit-2`, and so on.
        config: Further settings. By default, those among the flags of the command line that are
            settings of `RunConfig`.
        hooks: Hooks to call beside the callbacks.
        exit_other_tasks: Whether the tasks that are not the chief end the program when the training
            is done. If not, they return an empty history.

    Returns:
        The `keras.callbacks.History`, on the chief.

    Raises:
        PhalanxError: The settings are wrong, or the training failed.
        ValueError: Keras does not accept the arguments.
    """
    explain_errors()
    check_model(model, "fit")
    check_numbers(0, epochs=epochs, initial_epoch=initial_epoch)
    check_numbers(
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        validation_steps=validation_steps,
        validation_batch_size=validation_batch_size,
    )
    check_validation(validation_split, validation_freq)
    # Without an epoch to train, nothing below depends on this number.
    config = _make_config(model, config, model_dir).replace(epochs=max(1, epochs))
    topology = _join(config)
    validation = None
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = array_slicing.train_validation_split(
            (x, y, sample_weight), validation_split=validation_split
        )
    if validation_data is not None:
        val_x, val_y, val_weight = keras.utils.unpack_x_y_sample_weight(validation_data)
        validation = FitData(
            val_x,
            val_y,
            val_weight,
            batch_size=validation_batch_size or batch_size,
            steps=validation_steps,
        )
    train = FitData(x, y, sample_weight, class_weight, batch_size, shuffle)
    train.check_input()
    train.check_end("x", steps_per_epoch, "steps_per_epoch")
    if validation is not None:
        validation.check_end("validation_data", validation_steps, "validation_steps")
    history = CallbackHook(
        callbacks,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        validation_freq=validation_freq,
        verbose=resolve_verbose(verbose),
    )
    calls = program_calls(topology, config.wait_seconds)
    experiment = _make_experiment(model, train, validation, topology, config)
    order = experiment.order(topology.strategy)
    task = TaskRun(
        experiment,
        config,
        topology,
        [history, _Pull(), *hooks],
        steps_per_epoch=steps_per_epoch,
        steps_per_pass=experiment.steps_per_pass,
        initial_epoch=initial_epoch,
        arrive=partial(calls.arrive, "fit", order),
        data_name=f"train-{calls.number}",
    )
    if epochs <= initial_epoch:
        history.history.on_train_begin()
        return history.history
    if topology.task.role is Role.EVALUATOR:
        task.run_role()
        return _leave(exit_other_tasks)
    if not topology.is_chief:
        task.run_role()
        _complete(model, config)
        found, weights = calls.receive()
        if weights is not None:
            task.build_model()
            _assign(_variables(model), weights)
        return _restore_history(found)
    calls.begin("fit", order)
    task.run_role()
    _complete(model, config)
    found = history.history
    # The other trainers of an all-reduce have the weights already. These are the variables of now,
    # because the program may compile the model again before they are read.
    weights = partial(_read, _variables(model)) if topology.strategy.has_ps else None
    calls.end(lambda: (found.history, found.epoch, found.params), weights, exits=exit_other_tasks)
    return found


def evaluate(
    model: Model,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    return_dict: bool = False,
    config: RunConfig | None = None,
    exit_other_tasks: bool = True,
) -> Any:
    """Evaluate a compiled model, as `model.evaluate` does; the tasks of the cluster share the data.

    Args:
        model: The compiled `keras.Model`.
        x: The input, as for `fit`.
        y: The targets, if `x` is arrays.
        batch_size: Examples per batch, by default 32, if `x` is arrays or a pipeline.
        verbose: 0 for nothing; otherwise one line.
        sample_weight: The weight of each example, if `x` is arrays.
        steps: How many batches to evaluate. By default all.
        return_dict: Whether to return a dict of the loss and the metrics, instead of a list.
        config: Further settings, as for `fit`.
        exit_other_tasks: Whether the tasks that are not the chief end the program afterwards. If
            not, they return None.

    Returns:
        On the chief, what `model.evaluate` returns.

    Raises:
        PhalanxError: The settings are wrong, or another task failed.
        ValueError: Keras does not accept the arguments.
    """
    explain_errors()
    check_model(model, "evaluate")
    check_numbers(batch_size=batch_size, steps=steps)
    is_silent = resolve_verbose(verbose) == 0
    config = (config or RunConfig.parse_known()).replace(epochs=1, model_dir=None)
    topology = _join(config)
    data = FitData(x, y, sample_weight, batch_size=batch_size, steps=steps)
    data.check_input()
    data.check_end("x", steps, "steps")
    calls = program_calls(topology, config.wait_seconds)
    experiment = _make_experiment(model, None, data, topology, config)
    hook = _Evaluate()
    order = experiment.order(topology.strategy)
    arrive = partial(calls.arrive, "evaluate", order)
    task = TaskRun(experiment, config, topology, [hook], arrive=arrive, trains=False)
    if not topology.is_chief:
        task.run_role()
        [values] = calls.receive()
    else:
        calls.begin("evaluate", order)
        task.run_role()
        # The loss first, if a test_step of the model returns one.
        values = dict(sorted(hook.values.items(), key=lambda item: item[0] != "loss"))
        calls.end(values, exits=exit_other_tasks)
        if not is_silent:
            print(" - ".join(f"{name}: {value:.4f}" for name, value in values.items()))
    return values if return_dict else model._flatten_metrics_in_order(values)


def predict(
    model: Model,
    x: Any,
    *,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    config: RunConfig | None = None,
    exit_other_tasks: bool = True,
) -> Any:
    """Predict with a model, as `model.predict` does; the tasks of the cluster share the batches.

    The chief's weights are used. The model need not be compiled.

    Args:
        model: The `keras.Model`.
        x: The input, as for `fit`. The tasks take its batches in turn.
        batch_size: Examples per batch, by default 32, if `x` is arrays or a pipeline.
        verbose: 0 for nothing; otherwise a progress bar in one process, and one line in a cluster.
        steps: How many batches to predict. By default all.
        callbacks: Keras callbacks, which the chief calls.
        config: Further settings, as for `fit`.
        exit_other_tasks: As for `fit`.

    Returns:
        The predictions in the order of the input, as NumPy arrays in the structure of the model's
        output.

    Raises:
        PhalanxError: The settings are wrong, or another task failed.
        ValueError: Keras does not accept the arguments.
    """
    explain_errors()
    check_model(model, "predict", compiled=False)
    check_numbers(batch_size=batch_size, steps=steps)
    resolve_verbose(verbose)
    config = config or RunConfig.parse_known()
    topology = _join(config)
    if isinstance(x, Pipeline):
        x = x.dataset(batch_size or DEFAULT_BATCH_SIZE, epochs=1)
        batch_size = None
    data = FitData(x, batch_size=batch_size, steps=steps)
    data.check_input()
    data.check_end("x", steps, "steps")
    if topology.strategy is Strategy.ONE_PROCESS:
        data.check_batches("predict")
        return model.predict(
            x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks
        )
    return predict_together(
        model, data, topology, config, callbacks, verbose=verbose, exits=exit_other_tasks
    )


class _Evaluate(Hook):
    """Evaluates the model, and ends the run before its first step."""

    def __init__(self) -> None:
        self.values: Mapping[str, float] = {}

    def begin(self, session: Session) -> None:
        self.values = session.evaluate()
        session.request_stop("the model is evaluated")


class _Pull(Hook):
    """Copies the trained weights to the model."""

    def end(self, session: Session) -> None:
        session.pull()


def _leave(exits: bool) -> Callback:
    """End the program of an evaluator, if it is to end here, or return an empty history."""
    if exits:
        sys.exit(0)
    return keras.callbacks.History()


def _variables(model: Model) -> list[KerasVariable]:
    return [*model.weights, *model.optimizer.variables]


def _read(variables: Sequence[KerasVariable]) -> list[Array]:
    return [np.asarray(variable.numpy()) for variable in variables]


def _assign(variables: Sequence[KerasVariable], values: Sequence[Array]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _restore_history(found: tuple[Any, ...]) -> Callback:
    history = keras.callbacks.History()
    history.history, history.epoch, history.params = found
    return history


def _make_config(model: Model, config: RunConfig | None, model_dir: str | None) -> RunConfig:
    """Return the settings of the run: those of the caller, of the model and of the environment."""
    config = config or RunConfig.parse_known()
    for name in ("train_steps", "mixed_precision", "accumulate"):
        if getattr(config, name) != getattr(RunConfig(), name):
            raise ConfigurationError(
                f"{name} is set, which phalanx.fit cannot change: {_INSTEAD[name]}"
            )
    if model.steps_per_execution > 1 and config.steps_per_call is None:
        config = config.replace(steps_per_call=model.steps_per_execution)
    if model.jit_compile:
        config = config.replace(xla=True)
    directory = model_dir or config.model_dir or detect().model_dir
    return config.replace(model_dir=_choose_directory(model, directory))


# The directories of the calls that are complete.
_complete_calls: weakref.WeakKeyDictionary[Model, set[str]] = weakref.WeakKeyDictionary()


def _choose_directory(model: Model, directory: str | None) -> str | None:
    """Return the directory of this call: another one than those of the model's earlier calls."""
    used = _complete_calls.get(model, set())
    if directory is None or directory not in used:
        return directory
    choices = (f"{directory.rstrip('/')}/fit-{number}" for number in count(2))
    return next(choice for choice in choices if choice not in used)


def _complete(model: Model, config: RunConfig) -> None:
    """Note that a call is complete, so that the next one does not restore its checkpoints."""
    if config.model_dir is not None:
        _complete_calls.setdefault(model, set()).add(config.model_dir)


_INSTEAD = {
    "train_steps": "use its arguments epochs and steps_per_epoch",
    "mixed_precision": "call keras.mixed_precision.set_global_policy before you make the model",
    "accumulate": "set gradient_accumulation_steps of the optimizer",
}


def _join(config: RunConfig) -> Topology:
    """Return the part of this process in its cluster, which it has joined."""
    topology = replace(resolve_topology(detect(), config), divides_evenly=False)
    if topology.strategy is not Strategy.ONE_PROCESS:
        show_log()
        join_with_model(topology, config.wait_seconds)
    is_evaluator = topology.task.role is Role.EVALUATOR
    if is_evaluator or (topology.is_chief and config.model_dir is not None):
        check_directory(config.model_dir)
    return topology


def _make_experiment(
    model: Model,
    train: FitData | None,
    evaluation: FitData | None,
    topology: Topology,
    config: RunConfig,
) -> FitExperiment:
    if topology.task.role is Role.PS:
        return FitExperiment(model)
    seed = _choose_seed(topology, config)
    return FitExperiment(
        model,
        None if train is None else train.share(seed),
        None if evaluation is None else evaluation.share(seed),
        whole_batches=topology.strategy is Strategy.ASYNC_PS,
    )


def _choose_seed(topology: Topology, config: RunConfig) -> int | None:
    """Return a seed that all tasks know, also after a restart; None where none is needed."""
    if config.seed is not None:
        return config.seed
    if config.model_dir is not None:
        return zlib.crc32(config.model_dir.encode())
    if topology.strategy is Strategy.ONE_PROCESS:
        return None
    return zlib.crc32(",".join(sorted(topology.cluster.addresses.values())).encode())
