"""Checks of what a program passes to an Estimator."""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.errors import ConfigurationError

LOG = logging.getLogger("phalanx")

_READS = ("Identity", "ReadVariableOp", "IsVariableInitialized", "VarIsInitializedOp")
_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")
_PARAMETER_SERVER = "ParameterServerStrategy"
_MIRRORED = ("MirroredStrategy", "CentralStorageStrategy")
_DISTRIBUTE = ("train_distribute", "eval_distribute")


def check_model_fn(model_fn: Callable[..., Any], params: Any) -> tuple[str, ...]:
    """Return the names of the arguments that a model_fn takes."""
    if not callable(model_fn):
        raise ValueError(f"model_fn is {model_fn!r}: pass a function that builds the model")
    parameters = inspect.signature(model_fn).parameters
    keywords = [name for name, each in parameters.items() if each.kind is each.VAR_KEYWORD]
    takes = _MODEL_FN_ARGUMENTS if keywords else tuple(parameters)
    if "features" not in takes:
        raise ValueError(f"the model_fn takes {takes}: it must take an argument named features")
    if params is not None and "params" not in takes:
        raise ValueError("params were given, but the model_fn takes no argument named params")
    unknown = [
        name
        for name, each in parameters.items()
        if name not in (*_MODEL_FN_ARGUMENTS, *keywords) and each.default is each.empty
    ]
    if unknown:
        known = ", ".join(_MODEL_FN_ARGUMENTS)
        raise ValueError(f"the model_fn takes {unknown}, but it is called with {known} only")
    return takes


def check_strategies(config: RunConfig) -> None:
    """Accept the devices of one process, one replica, and parameter servers by TF_CONFIG."""
    both = config.experimental_distribute
    if both is not None and not all(hasattr(both, name) for name in _DISTRIBUTE):
        raise ConfigurationError(
            f"RunConfig(experimental_distribute=...) is a {type(both).__name__}: it must be a "
            "tf.contrib.distribute.DistributeConfig"
        )
    if getattr(both, "remote_cluster", None) is not None:
        raise ConfigurationError(
            "DistributeConfig(remote_cluster=...) is not supported under --tf1: start every task "
            "with TF_CONFIG, as phalanx run --tf1 does"
        )
    strategies = [
        (name, getattr(each, name, None)) for each in (config, both) for name in _DISTRIBUTE
    ]
    for name, given in strategies:
        if given is None:
            continue
        kind = type(given).__name__.removesuffix("V1")
        replicas = getattr(given, "num_replicas_in_sync", None)
        is_alone = config.num_worker_replicas <= 1
        if is_alone and replicas is not None and replicas > 1 and kind in _MIRRORED:
            LOG.info("RunConfig(%s=%s) has %d replicas", name, kind, replicas)
            continue
        if kind == _PARAMETER_SERVER or (is_alone and replicas == 1):
            LOG.info("RunConfig(%s=%s) has no effect here: the program trains without", name, kind)
            continue
        raise ConfigurationError(
            f"RunConfig({name}=...) is a {kind} of {replicas or 'several'} replicas and "
            f"{config.num_worker_replicas} tasks, which is not supported under --tf1: use a "
            "MirroredStrategy for the devices of one process, or leave it out and start the "
            "program on parameter servers (phalanx run --tf1 --ps 1 --workers 2), synchronously "
            "with tf.train.SyncReplicasOptimizer"
        )


def check_steps(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count <= 0:
            raise ValueError(f"{name} is {count}: it must be at least 1, or None")


def check_hooks(hooks: Sequence[Any] | None) -> None:
    for hook in hooks or ():
        if not isinstance(hook, tf.train.SessionRunHook):
            raise TypeError(f"hooks has {hook!r}: pass objects of a tf.train.SessionRunHook")


def warn_of_fixed_step(step: Any) -> None:
    """Warn if nothing in the graph changes the global step: then no number of steps is reached."""
    # On several replicas it is a variable on each of them.
    copies = getattr(step, "values", (step,))
    users = (each for v in copies for tensor in v.op.outputs for each in tensor.consumers())
    initializers = [v.initializer for v in copies]
    if all(each.type in _READS or each in initializers for each in users):
        LOG.warning(
            "the train_op does not increase the global step, so that training ends with its data "
            "only, and checkpoints replace each other: pass "
            "global_step=tf.train.get_global_step() to minimize or apply_gradients"
        )
