"""The networks of canned estimators, as functions from features to logits."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.canned.heads import Head
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import EstimatorSpec, ModeKeys

DNN_RATE = 0.05
_PARTITION_BYTES = 64 << 20
_OPTIMIZERS = {
    "Adagrad": tf.train.AdagradOptimizer,
    "Adam": tf.train.AdamOptimizer,
    "Ftrl": tf.train.FtrlOptimizer,
    "RMSProp": tf.train.RMSPropOptimizer,
    "SGD": tf.train.GradientDescentOptimizer,
}


def make_optimizer(given: Any, rate: float) -> Any:
    """Return an optimizer from its name, a function, or itself."""
    if isinstance(given, str):
        if given not in _OPTIMIZERS:
            known = ", ".join(_OPTIMIZERS)
            raise ValueError(f"there is no optimizer {given!r}: there are {known}")
        return _OPTIMIZERS[given](learning_rate=rate)
    if callable(given) and not isinstance(given, tf.train.Optimizer):
        given = given()
    if not isinstance(given, tf.train.Optimizer):
        raise TypeError(f"the optimizer is {given!r}: use one of tf.train")
    return given


def linear_rate(columns: Sequence[Any], most: float) -> float:
    """Return the learning rate of a linear model with these columns."""
    return min(most, 1 / math.sqrt(max(1, len(columns))))


def _make_partitioner(config: RunConfig | None) -> Any:
    """Split tables of 64 MB and more over the parameter servers."""
    shards = config.num_ps_replicas if config is not None else 0
    if not shards:
        return None
    return tf.min_max_variable_partitioner(max_partitions=shards, min_slice_size=_PARTITION_BYTES)


def build_linear(
    features: Any,
    columns: Sequence[Any],
    units: int,
    config: RunConfig | None,
    sparse_combiner: str = "sum",
) -> Any:
    """Return the logits of a linear model."""
    with tf.variable_scope("linear", partitioner=_make_partitioner(config)):
        return tf.feature_column.linear_model(
            features, columns, units=units, sparse_combiner=sparse_combiner
        )


def build_dnn(
    features: Any,
    columns: Sequence[Any],
    units: int,
    config: RunConfig | None,
    mode: str,
    *,
    hidden_units: Sequence[int],
    activation_fn: Callable[[Any], Any],
    dropout: float | None,
    batch_norm: bool,
) -> Any:
    """Return the logits of a network with hidden layers."""
    is_training = mode == ModeKeys.TRAIN
    with tf.variable_scope("dnn"):
        with tf.variable_scope("input_from_feature_columns", partitioner=_make_partitioner(config)):
            net = tf.feature_column.input_layer(features, columns)
        for number, size in enumerate(hidden_units):
            net = _dense(net, size, activation_fn, f"hiddenlayer_{number}")
            if dropout and is_training:
                net = tf.nn.dropout(net, rate=dropout)
            if batch_norm:
                net = tf.layers.batch_normalization(
                    net, momentum=0.999, training=is_training, name=f"batchnorm_{number}"
                )
            tf.summary.scalar(
                f"hiddenlayer_{number}/fraction_of_zero_values", tf.nn.zero_fraction(net)
            )
        return _dense(net, units, None, "logits")


def _dense(inputs: Any, units: int, activation: Any, name: str) -> Any:
    with tf.variable_scope(name):
        width = inputs.shape[-1]
        initializer = tf.glorot_uniform_initializer()
        kernel = tf.get_variable("kernel", [width, units], initializer=initializer)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
    return outputs if activation is None else activation(outputs)


def build_baseline(features: Any, units: int) -> Any:
    """Return the same logits for every example."""
    with tf.variable_scope("baseline"):
        first = features if tf.is_tensor(features) else next(iter(features.values()))
        dense = first.dense_shape if isinstance(first, tf.SparseTensor) else tf.shape(first)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        size = tf.cast(dense[0], tf.int32)
        return tf.tile(tf.expand_dims(bias, 0), [size, 1])


def make_spec(
    head: Head,
    features: Any,
    labels: Any,
    mode: str,
    logits: Any,
    optimizers: dict[str, Callable[[], Any]],
) -> EstimatorSpec:
    """Return the spec of a model whose scopes are trained by these optimizers."""

    def train(loss: Any) -> Any:
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        steps = []
        with tf.control_dependencies(updates):
            for scope, make in optimizers.items():
                variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope=f"{scope}/")
                if variables:
                    steps.append(make().minimize(loss, var_list=variables))
        with tf.control_dependencies(steps):
            return tf.assign_add(tf.train.get_global_step(), 1).op

    return head.create_estimator_spec(features, mode, logits, labels, train_op_fn=train)
