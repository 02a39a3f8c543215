"""Type aliases that the modules of phalanx.data share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Ranges: TypeAlias = Sequence[tuple[int, int]]
Column: TypeAlias = Any
"""A NumPy array whose rows are the examples, or an Arrow array."""
Columns: TypeAlias = dict[str, Column]
Tensor: TypeAlias = Any
"""A tensor, a ragged tensor, or an array that TensorFlow converts to a tensor."""
Batch: TypeAlias = Any
"""A tensor, or a nested structure of tensors."""
Specs: TypeAlias = dict[str, Any]
"""A `tf.TypeSpec`, or a specification for `tf.io.parse_example`, for each feature."""
Default: TypeAlias = Any
"""A value that replaces a missing feature."""
BatchFunction: TypeAlias = Callable[..., Batch]
"""A function of a batch, and of a seed if it is seeded."""
