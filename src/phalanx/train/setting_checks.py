"""Errors for settings that do not fit a model or its step."""

import logging
from collections.abc import Iterable

import keras

from phalanx.errors import ConfigurationError
from phalanx.train.config import Mode, RunConfig
from phalanx.train.step.step_function import StepFunction, stateful_layers
from phalanx.train.types import Callback
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.host_variables import ELEMENTWISE, HostVariables, inner_optimizer
from phalanx.train.variables.sparse_tables import is_table
from phalanx.train.variables.table import Table

LOG = logging.getLogger("phalanx")


def check_recurrent_layers(config: RunConfig, step_function: StepFunction, replicas: int) -> None:
    """Raise an error if recurrent layers keep state between batches that are not consecutive."""
    for layer in stateful_layers(step_function.model):
        if replicas > 1 or config.accumulate > 1:
            found = f"{replicas} replicas train" if replicas > 1 else "gradients are accumulated"
            raise ConfigurationError(
                f"the layer {layer.name} ({type(layer).__name__}) is stateful, so each batch "
                f"continues the sequences of the one before it, but {found}: train in one process "
                "on one device, without accumulation, or set stateful=False"
            )


def check_growing_tables(config: RunConfig, host_variables: HostVariables, has_ps: bool) -> None:
    """Raise an error if growing tables cannot be trained in this way."""
    for table in (*host_variables.trainable, *host_variables.state):
        if not isinstance(table, Table) or table.index is None:
            continue
        optimizer = table.optimizer or host_variables.optimizer
        problem = ""
        if config.xla:
            problem = "xla is set, which does not support its lookups"
        elif not table.trainable and has_ps:
            problem = "it is not trainable, so that its index would not be on the parameter servers"
        elif table.trainable and type(optimizer) not in ELEMENTWISE:
            problem = f"{type(optimizer).__name__} does not update each element by itself"
        elif config.ps_replicas > 1 and config.mode is not Mode.SYNC:
            problem = (
                "ps_replicas is set, and asynchronous updates arrive in another order at each "
                "replica, which would give other rows to the same ids"
            )
        if problem:
            raise ConfigurationError(
                f"{table.path} belongs to a DynamicEmbedding, but {problem}: change that, or use "
                "phalanx.layers.Embedding with hash_inputs=True"
            )


def check_callbacks(callbacks: Iterable[Callback], host_variables: HostVariables) -> None:
    """Raise an error for callbacks that sparse tables do not allow."""
    tables = [variable for variable in host_variables.trainable if is_table(variable)]
    if tables and any(isinstance(c, keras.callbacks.SwapEMAWeights) for c in callbacks):
        raise ConfigurationError(
            f"SwapEMAWeights swaps whole weights, but {tables[0].path} is a sparse table, which no "
            "host may hold: leave the callback out; the weights become their averages at the end"
        )


def check_in_place(config: RunConfig, step_function: StepFunction) -> None:
    """Raise an error for settings that do not fit a step which updates weights while it runs."""
    if step_function.updates_in_place:
        if config.xla:
            LOG.info("%s, so it runs without XLA", step_function.describe_updates())
        advice = {
            "accumulate": "set gradient_accumulation_steps of the optimizers",
            "clip_norm": "set global_clipnorm of the optimizers",
            "compress": "leave it out",
            "bytes_per_pack": "leave it out",
        }
        defaults = RunConfig()
        for name, remedy in advice.items():
            if (value := getattr(config, name)) != getattr(defaults, name):
                raise ConfigurationError(
                    f"{name} is {value}, but {step_function.describe_updates()}, to which {name} "
                    f"does not apply: {remedy}"
                )


def check_asynchronous(step_function: StepFunction, clipping: Clipping) -> None:
    """Raise an error for settings that asynchronous training cannot have."""
    steps = inner_optimizer(step_function.optimizer).gradient_accumulation_steps
    if steps and clipping.has_limits:
        raise ConfigurationError(
            f"gradient_accumulation_steps of the optimizer is {steps}, and gradients have a limit: "
            "asynchronous trainers do not know the mean that Keras would clip. Leave out one of "
            "them, or set accumulate of the run instead (--accumulate)"
        )


def check_fits_ps(
    config: RunConfig, step_function: StepFunction, host_variables: HostVariables
) -> None:
    """Raise an error for settings and models that cannot be trained on parameter servers."""
    if step_function.updates_in_place:
        raise ConfigurationError(
            f"{step_function.describe_updates()}, which parameter servers cannot do between the "
            "transfers of a step: train without parameter servers"
        )
    for name in ("compress", "communication", "bytes_per_pack", "collective_seconds"):
        if (value := getattr(config, name)) is not None:
            raise ConfigurationError(
                f"{name} is {value}, which applies to all-reduce, but the cluster has parameter "
                "servers: leave it out, or train without parameter servers"
            )
    if isinstance(step_function.optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigurationError(
            "mixed_precision is float16, which needs a loss scale that parameter servers cannot "
            "share: use bfloat16, or train synchronously without parameter servers"
        )
    if config.xla and any(is_table(variable) for variable in host_variables.trainable):
        raise ConfigurationError(
            "xla is set, but the model looks up rows on parameter servers, which XLA does not "
            "support: leave --xla out"
        )
