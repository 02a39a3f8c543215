"""tf.contrib.layers: layers without weights, and layers in a row."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.framework.scopes import add_arg_scope
from phalanx.compat.tf1.contrib.layers.core import fully_connected
from phalanx.compat.tf1.contrib.layers.scoped import collect_named_outputs


def _make_pool(pool: Callable[..., Any], default_scope: str) -> Callable[..., Any]:
    def call(
        inputs: Any,
        kernel_size: Any,
        stride: Any = 2,
        padding: str = "VALID",
        data_format: str = "NHWC",
        outputs_collections: Any = None,
        scope: Any = None,
    ) -> Any:
        with tf.name_scope(scope, default_scope, [inputs]) as name:
            outputs = pool(inputs, kernel_size, stride, padding, data_format)
            return collect_named_outputs(outputs_collections, name, outputs)

    call.__name__ = call.__qualname__ = pool.__name__
    return add_arg_scope(call)


max_pool2d = _make_pool(tf.nn.max_pool2d, "MaxPool2D")
avg_pool2d = _make_pool(tf.nn.avg_pool2d, "AvgPool2D")


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Any:
    """Return inputs of which a part is dropped in training; see `tf.layers.dropout`."""
    with tf.name_scope(scope, "Dropout", [inputs]) as name:
        outputs = tf.layers.dropout(inputs, 1 - keep_prob, noise_shape, seed, is_training)
        return collect_named_outputs(outputs_collections, name, outputs)


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """Return [batch, everything else]; see `tf.layers.flatten`."""
    with tf.name_scope(scope, "Flatten", [inputs]) as name:
        return collect_named_outputs(outputs_collections, name, tf.layers.flatten(inputs))


@add_arg_scope
def one_hot_encoding(
    labels: Any,
    num_classes: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """Return one-hot vectors; see `tf.one_hot`."""
    with tf.name_scope(scope, "OneHotEncoding", [labels]) as name:
        outputs = tf.one_hot(tf.cast(labels, tf.int64), num_classes, on_value, off_value)
        return collect_named_outputs(outputs_collections, name, outputs)


@add_arg_scope
def softmax(logits: Any, scope: Any = None) -> Any:
    """Return probabilities; see `tf.nn.softmax`."""
    with tf.name_scope(scope, "softmax", [logits]):
        return tf.nn.softmax(logits)


def repeat(
    inputs: Any, repetitions: int, layer: Callable[..., Any], *args: Any, **more: Any
) -> Any:
    """Apply the same layer several times: the scopes are `scope/scope_1`, `scope/scope_2`, ...

    Args:
        inputs: The inputs of the first layer.
        repetitions: How often.
        layer: The layer.
        *args: Its arguments.
        **more: Its arguments by name, and `scope`.

    Returns:
        The outputs of the last layer.
    """
    scope = more.pop("scope", None)
    with tf.variable_scope(scope, "Repeat", [inputs]):
        name = scope or getattr(layer, "__name__", "repeat")
        for number in range(1, repetitions + 1):
            inputs = layer(inputs, *args, scope=f"{name}_{number}", **more)
    return inputs


def stack(inputs: Any, layer: Callable[..., Any], stack_args: Sequence[Any], **more: Any) -> Any:
    """Apply a layer several times, with other arguments each time.

    Args:
        inputs: The inputs of the first layer.
        layer: The layer.
        stack_args: For each time, the argument or a tuple of arguments.
        **more: The same arguments for all, and `scope`.

    Returns:
        The outputs of the last layer.
    """
    scope = more.pop("scope", None)
    with tf.variable_scope(scope, "Stack", [inputs]):
        name = scope or getattr(layer, "__name__", "stack")
        for number, args in enumerate(stack_args, 1):
            given = args if isinstance(args, (list, tuple)) else [args]
            inputs = layer(inputs, *given, scope=f"{name}_{number}", **more)
    return inputs


relu = partial(fully_connected, activation_fn=tf.nn.relu)
relu6 = partial(fully_connected, activation_fn=tf.nn.relu6)
elu = partial(fully_connected, activation_fn=tf.nn.elu)
linear = partial(fully_connected, activation_fn=None)


def embed_sequence(
    ids: Any,
    vocab_size: int,
    embed_dim: int,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: bool | None = None,
) -> Any:
    """Return the rows of a table for numbers; see `tf.nn.embedding_lookup`."""
    with tf.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        table = tf.get_variable(
            "embeddings",
            [vocab_size, embed_dim],
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
        )
        return tf.nn.embedding_lookup(table, ids)


def summarize_activation(op: Any) -> Any:
    """Write a histogram of a tensor."""
    return tf.summary.histogram(f"{op.op.name}/activation", op)


def summarize_tensor(tensor: Any, tag: str | None = None) -> Any:
    """Write a scalar, or a histogram of a tensor with more values."""
    write = tf.summary.scalar if tensor.shape.num_elements() == 1 else tf.summary.histogram
    return write(tag or tensor.op.name, tensor)
