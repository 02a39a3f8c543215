"""What the layers of tf.contrib.layers share: scopes, the names of weights, and collections."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.framework.variables import add_model_variable

_NAMES = {
    "kernel": "weights",
    "depthwise_kernel": "depthwise_weights",
    "pointwise_kernel": "pointwise_weights",
    "bias": "biases",
}


@contextmanager
def layer_scope(
    scope: Any,
    default: str,
    inputs: Any,
    reuse: bool | None,
    variables_collections: Any = None,
) -> Iterator[Any]:
    """Open the scope of a layer, in which tf.layers makes variables with contrib's names.

    Checkpoints of 2017 have `conv1/weights` where tf.layers has `conv1/kernel`.

    Args:
        scope: The scope, or None for the default.
        default: The name of the scope if there is none.
        inputs: The inputs of the layer.
        reuse: Whether the variables exist.
        variables_collections: Collections for all variables, or by the name of the variable.

    Yields:
        The scope, to be given to tf.layers as the name.
    """

    def get(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        path, slash, last = name.rpartition("/")
        last = _NAMES.get(last, last)
        found = getter(f"{path}{slash}{last}", *args, **kwargs)
        add_model_variable(found)
        chosen = variables_collections
        if isinstance(chosen, Mapping):
            chosen = chosen.get(last)
        for each in [chosen] if isinstance(chosen, str) else chosen or ():
            if not any(other is found for other in tf.get_collection(each)):
                tf.add_to_collection(each, found)
        return found

    with tf.variable_scope(scope, default, [inputs], reuse=reuse, custom_getter=get) as opened:
        yield opened


def finish(outputs: Any, scope: Any, activation_fn: Any, outputs_collections: Any) -> Any:
    """Activate the outputs of a layer, and add them to collections."""
    if activation_fn is not None:
        outputs = activation_fn(outputs)
    return collect_named_outputs(outputs_collections, scope.name, outputs)


def channels(data_format: str | None) -> str:
    """Return what tf.layers calls NHWC and NCHW."""
    if data_format not in (None, "NHWC", "NCHW"):
        raise ValueError(f"data_format is {data_format!r}: it must be NHWC or NCHW")
    return "channels_first" if data_format == "NCHW" else "channels_last"


def collect_named_outputs(collections: Any, alias: str, outputs: Any) -> Any:
    """Add a tensor to collections under a name, and return it.

    Args:
        collections: The collections; None adds it to none.
        alias: The name.
        outputs: The tensor.

    Returns:
        The tensor.
    """
    if collections:
        outputs.aliases = [*getattr(outputs, "aliases", ()), alias.rstrip("/")]
        tf.add_to_collections(collections, outputs)
    return outputs
