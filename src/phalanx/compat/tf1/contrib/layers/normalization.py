"""tf.contrib.layers: normalization."""

from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.framework.scopes import add_arg_scope
from phalanx.compat.tf1.contrib.framework.variables import model_variable
from phalanx.compat.tf1.contrib.layers.scoped import channels, finish, layer_scope


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Any = None,
    param_initializers: Any = None,
    param_regularizers: Any = None,
    updates_collections: Any = tf.GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
) -> Any:
    """Return normalized inputs; see `tf.layers.batch_normalization`."""
    if batch_weights is not None or zero_debias_moving_mean:
        raise ValueError("batch_norm: batch_weights and zero_debias_moving_mean are not supported")
    initial = param_initializers or {}
    given = {
        f"{name}_initializer": initial[name]
        for name in ("beta", "gamma", "moving_mean", "moving_variance")
        if name in initial
    }
    for name, regularizer in (param_regularizers or {}).items():
        given[f"{name}_regularizer"] = regularizer
    before = len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    with layer_scope(scope, "BatchNorm", inputs, reuse, variables_collections) as opened:
        outputs = tf.layers.batch_normalization(
            inputs,
            axis=1 if channels(data_format) == "channels_first" else -1,
            momentum=decay,
            epsilon=epsilon,
            center=center,
            scale=scale,
            training=is_training,
            trainable=trainable,
            name=opened,
            reuse=reuse,
            fused=fused,
            renorm=renorm,
            renorm_clipping=renorm_clipping,
            renorm_momentum=renorm_decay,
            **given,
        )
        outputs = _move_updates(outputs, before, updates_collections)
        return finish(outputs, opened, activation_fn, outputs_collections)


def _move_updates(outputs: Any, before: int, collections: Any) -> Any:
    """Put the updates of the moving averages where the program wants them; None: run them now."""
    every = tf.get_collection_ref(tf.GraphKeys.UPDATE_OPS)
    updates = every[before:]
    del every[before:]
    if collections is None:
        with tf.control_dependencies(updates):
            return tf.identity(outputs)
    for update in updates:
        tf.add_to_collections(collections, update)
    return outputs


@add_arg_scope
def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Return inputs of which each example is normalized, with a learned scale and offset."""
    rank = inputs.shape.rank
    axes = list(range(begin_norm_axis % rank, rank))
    shape = inputs.shape[begin_params_axis % rank :]
    with layer_scope(scope, "LayerNorm", inputs, reuse, variables_collections) as opened:
        make = partial(model_variable, shape=shape, dtype=inputs.dtype, trainable=trainable)
        beta = make("beta", initializer=tf.zeros_initializer()) if center else None
        gamma = make("gamma", initializer=tf.ones_initializer()) if scale else None
        mean, variance = tf.nn.moments(inputs, axes, keep_dims=True)
        outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)
        outputs.set_shape(inputs.shape)
        return finish(outputs, opened, activation_fn, outputs_collections)
