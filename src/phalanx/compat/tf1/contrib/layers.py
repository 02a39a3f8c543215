"""tf.contrib.layers: the functions that programs used most, over tf.layers."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.canned.models import make_optimizer


def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: Any = tf.float32
) -> Any:
    """Return Glorot's initializer.

    Args:
        uniform: Whether its distribution is uniform, and not normal.
        seed: The seed.
        dtype: The type of the values.

    Returns:
        The initializer.
    """
    kind = tf.glorot_uniform_initializer if uniform else tf.glorot_normal_initializer
    return kind(seed=seed, dtype=dtype)


xavier_initializer_conv2d = xavier_initializer


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Any = tf.float32,
) -> Any:
    """Return an initializer whose variance is factor / n.

    Args:
        factor: The factor.
        mode: What n is: FAN_IN, FAN_OUT or FAN_AVG.
        uniform: Whether its distribution is uniform, and not normal.
        seed: The seed.
        dtype: The type of the values.

    Returns:
        The initializer.
    """
    distribution = "uniform" if uniform else "truncated_normal"
    return tf.variance_scaling_initializer(factor, mode.lower(), distribution, seed, dtype)


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any] | None:
    """Return a function for the loss of weights: scale times half of their squares' sum.

    Args:
        scale: The factor; 0 means none.
        scope: Not used.

    Returns:
        The function.
    """
    return (lambda weights: scale * tf.nn.l2_loss(weights)) if scale else None


def l1_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any] | None:
    """Return a function for the loss of weights: scale times the sum of their absolute values.

    Args:
        scale: The factor; 0 means none.
        scope: Not used.

    Returns:
        The function.
    """
    return (lambda weights: scale * tf.reduce_sum(tf.abs(weights))) if scale else None


def apply_regularization(regularizer: Callable[[Any], Any], weights_list: Any = None) -> Any:
    """Return the sum of a regularizer over weights.

    Args:
        regularizer: Returns the loss of weights.
        weights_list: The weights; by default those of the collection WEIGHTS.

    Returns:
        The sum.
    """
    weights = weights_list or tf.get_collection(tf.GraphKeys.WEIGHTS)
    return tf.add_n([regularizer(each) for each in weights])


def _normalize(outputs: Any, normalizer_fn: Any, params: Any, activation: Any) -> Any:
    if normalizer_fn is not None:
        outputs = normalizer_fn(outputs, **(params or {}))
    return outputs if activation is None else activation(outputs)


def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Any = tf.nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: Any = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = None,
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Return a dense layer; see `tf.layers.dense`. By default it has a ReLU."""
    outputs = tf.layers.dense(
        inputs,
        num_outputs,
        use_bias=normalizer_fn is None,
        kernel_initializer=weights_initializer or xavier_initializer(),
        bias_initializer=biases_initializer or tf.zeros_initializer(),
        kernel_regularizer=weights_regularizer,
        bias_regularizer=biases_regularizer,
        trainable=trainable,
        name=scope,
        reuse=reuse,
    )
    return _normalize(outputs, normalizer_fn, normalizer_params, activation_fn)


def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Any = tf.nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: Any = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = None,
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Return a convolution; see `tf.layers.conv2d`. By default it has a ReLU."""
    outputs = tf.layers.conv2d(
        inputs,
        num_outputs,
        kernel_size,
        strides=stride,
        padding=padding,
        data_format="channels_first" if data_format == "NCHW" else "channels_last",
        dilation_rate=rate,
        use_bias=normalizer_fn is None,
        kernel_initializer=weights_initializer or xavier_initializer(),
        bias_initializer=biases_initializer or tf.zeros_initializer(),
        kernel_regularizer=weights_regularizer,
        bias_regularizer=biases_regularizer,
        trainable=trainable,
        name=scope,
        reuse=reuse,
    )
    return _normalize(outputs, normalizer_fn, normalizer_params, activation_fn)


convolution2d = conv2d


def max_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str | None = None,
    scope: Any = None,
) -> Any:
    """Return the maximum of each window; see `tf.layers.max_pooling2d`."""
    form = "channels_first" if data_format == "NCHW" else "channels_last"
    return tf.layers.max_pooling2d(inputs, kernel_size, stride, padding, form, name=scope)


def avg_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str | None = None,
    scope: Any = None,
) -> Any:
    """Return the mean of each window; see `tf.layers.average_pooling2d`."""
    form = "channels_first" if data_format == "NCHW" else "channels_last"
    return tf.layers.average_pooling2d(inputs, kernel_size, stride, padding, form, name=scope)


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
    trainable: bool = True,
    fused: bool | None = None,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Any:
    """Return normalized inputs; see `tf.layers.batch_normalization`."""
    before = set(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    outputs = tf.layers.batch_normalization(
        inputs,
        axis=1 if data_format == "NCHW" else -1,
        momentum=decay,
        epsilon=epsilon,
        center=center,
        scale=scale,
        training=is_training,
        trainable=trainable,
        name=scope,
        reuse=reuse,
        fused=fused,
    )
    if updates_collections is None:
        updates = [op for op in tf.get_collection(tf.GraphKeys.UPDATE_OPS) if op not in before]
        with tf.control_dependencies(updates):
            outputs = tf.identity(outputs)
    return outputs if activation_fn is None else activation_fn(outputs)


def dropout(
    inputs: Any,
    keep_prob: float = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    scope: Any = None,
) -> Any:
    """Return inputs of which a part is dropped in training; see `tf.layers.dropout`."""
    return tf.layers.dropout(inputs, 1 - keep_prob, noise_shape, training=is_training, name=scope)


def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """Return [batch, everything else]; see `tf.layers.flatten`."""
    return tf.layers.flatten(inputs, name=scope)


def one_hot_encoding(
    labels: Any, num_classes: int, on_value: float = 1.0, off_value: float = 0.0
) -> Any:
    """Return one-hot vectors; see `tf.one_hot`."""
    return tf.one_hot(labels, num_classes, on_value, off_value)


def summarize_activation(op: Any) -> Any:
    """Write a histogram of a tensor."""
    return tf.summary.histogram(f"{op.op.name}/activation", op)


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Any = None,
    clip_gradients: float | None = None,
    learning_rate_decay_fn: Callable[[Any, Any], Any] | None = None,
    update_ops: Any = None,
    variables: Any = None,
    name: str | None = None,
    summaries: Any = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """Return the train_op of a loss.

    Args:
        loss: The loss.
        global_step: The step; None for that of the graph.
        learning_rate: A number or a tensor.
        optimizer: A name such as "Adam", a class, a function of the learning rate, or an optimizer.
        gradient_noise_scale: Not supported.
        gradient_multipliers: Not supported.
        clip_gradients: The largest global norm of the gradients.
        learning_rate_decay_fn: Returns the learning rate for (learning_rate, global_step).
        update_ops: Operations to run before; by default the collection UPDATE_OPS.
        variables: The variables to train.
        name: The name of the operation.
        summaries: Not used: the loss and the learning rate are written.
        colocate_gradients_with_ops: As in `tf.gradients`.
        increment_global_step: Whether the operation counts a step.

    Returns:
        A tensor with the loss, whose computation runs the step.
    """
    if gradient_noise_scale is not None or gradient_multipliers is not None:
        raise ValueError("optimize_loss: gradient noise and multipliers are not supported")
    step = tf.train.get_global_step() if global_step is None else global_step
    rate = learning_rate
    if learning_rate_decay_fn is not None:
        rate = learning_rate_decay_fn(rate, step)
    if rate is not None:
        tf.summary.scalar("learning_rate", rate)
    is_class = isinstance(optimizer, type)
    if isinstance(optimizer, str) or not (is_class or callable(optimizer)):
        chosen = make_optimizer(optimizer, rate)
    else:
        chosen = optimizer(learning_rate=rate) if is_class else optimizer(rate)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
    with tf.control_dependencies(list(updates)):
        loss = tf.identity(loss)
    pairs = chosen.compute_gradients(
        loss, variables, colocate_gradients_with_ops=colocate_gradients_with_ops
    )
    if clip_gradients is not None:
        kept = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in kept], clip_gradients)
        pairs = list(zip(clipped, [variable for _, variable in kept], strict=True))
    train = chosen.apply_gradients(pairs, step if increment_global_step else None, name=name)
    with tf.control_dependencies([train]):
        return tf.identity(loss)


real_valued_column = tf.feature_column.numeric_column
bucketized_column = tf.feature_column.bucketized_column
sparse_column_with_hash_bucket = tf.feature_column.categorical_column_with_hash_bucket
sparse_column_with_keys = tf.feature_column.categorical_column_with_vocabulary_list
sparse_column_with_integerized_feature = tf.feature_column.categorical_column_with_identity
crossed_column = tf.feature_column.crossed_column
embedding_column = tf.feature_column.embedding_column
one_hot_column = tf.feature_column.indicator_column
