"""Type aliases that the modules of phalanx.records share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Paths: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A path, a glob, or several of them."""
Progress: TypeAlias = Callable[[int], None]
"""A function that is called with the bytes or rows processed since the last call."""
Array: TypeAlias = "np.ndarray[Any, Any]"
ArrayBuffer: TypeAlias = Any
"""A NumPy array that is used as a buffer, which NumPy's stubs do not declare."""
FileSystem: TypeAlias = Any
"""An fsspec file system."""
ProtobufMessage: TypeAlias = Any
Value: TypeAlias = Any
"""A feature of one example: None, bytes, a number, or a list of these."""
Row: TypeAlias = dict[str, Value]
Examples: TypeAlias = Any
"""An Arrow table or batches, a dictionary of arrays or lists, or rows as dictionaries."""
