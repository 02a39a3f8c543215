"""Private names of TensorFlow 1 that programs used, and that TensorFlow 2 has elsewhere."""

from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any

MOVED: Mapping[str, str] = {
    # TensorFlow chooses the class of version 2 when it is imported; that of version 1 extends it.
    "tensorflow.python.framework.device.DeviceSpec": "DeviceSpec",
    "tensorflow.python.framework.graph_util.convert_variables_to_constants": (
        "graph_util.convert_variables_to_constants"
    ),
    "tensorflow.python.framework.ops.IndexedSlices": "IndexedSlices",
    "tensorflow.python.framework.ops.Tensor": "Tensor",
    "tensorflow.python.framework.ops.register_tensor_conversion_function": (
        "register_tensor_conversion_function"
    ),
    "tensorflow.python.ops.array_ops.stack": "stack",
    "tensorflow.python.ops.control_flow_ops.cond": "cond",
    "tensorflow.python.ops.control_flow_ops.while_loop": "while_loop",
    "tensorflow.python.pywrap_tensorflow.NewCheckpointReader": "train.NewCheckpointReader",
    "tensorflow.python.util.nest.is_sequence": "nest.is_nested",
}
"""The private names, and the names in tf.compat.v1 that do the same."""


def put_back(v1: Any) -> None:
    """Give the modules of TensorFlow the names that they had.

    Args:
        v1: `tf.compat.v1`.
    """
    for private, public in MOVED.items():
        module, _, name = private.rpartition(".")
        setattr(import_module(module), name, attrgetter(public)(v1))
