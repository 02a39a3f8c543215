"""Names for objects of TensorFlow, Keras and NumPy, which come without usable types."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

Tensor: TypeAlias = Any
"""A `tf.Tensor`, or a `tf.IndexedSlices` where a gradient is sparse."""
Batch: TypeAlias = Any
"""One element of a dataset: a tensor, or a nested structure of tensors."""
ElementSpec: TypeAlias = Any
"""The nested `tf.TypeSpec` of a batch."""
Dataset: TypeAlias = Any
DatasetIterator: TypeAlias = Any
TFVariable: TypeAlias = Any
TFStrategy: TypeAlias = Any
"""A `tf.distribute.Strategy`."""
TFFunction: TypeAlias = Any
TFQueue: TypeAlias = Any
GradientTape: TypeAlias = Any
RemoteValue: TypeAlias = Any
"""What `ClusterCoordinator.schedule` returns."""
GraphDef: TypeAlias = Any
TensorProto: TypeAlias = Any
"""A constant in a `GraphDef`."""

Model: TypeAlias = Any
"""A `keras.Model`, or a callable `tf.Module`."""
KerasVariable: TypeAlias = Any
Layer: TypeAlias = Any
"""A `keras.layers.Layer`."""
Optimizer: TypeAlias = Any
Metric: TypeAlias = Any
Loss: TypeAlias = Any
Callback: TypeAlias = Any
"""A `keras.callbacks.Callback`."""
Trackable: TypeAlias = Any
"""An object that `tf.train.Checkpoint` saves and restores."""

DType: TypeAlias = Any
"""A `tf.DType`."""
TensorSpec: TypeAlias = Any
NamedArrays: TypeAlias = Mapping[str, Array]
NamedTensors: TypeAlias = Mapping[str, Tensor]
NamedSpecs: TypeAlias = Mapping[str, TensorSpec]
SummaryWriter: TypeAlias = Any
"""A `tf.summary.SummaryWriter`."""
Server: TypeAlias = Any
"""A `tf.distribute.Server`, or a server of the tf.data service."""
ClusterCoordinator: TypeAlias = Any

UserFunction: TypeAlias = Callable[..., Any]
"""A step, loss or dataset function that the user writes."""
StepValues: TypeAlias = Any
"""What a user's step returns: the loss, or a dict with the loss and other values."""
