"""Checks that the rows of a checkpoint are found by the same keys as those of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from phalanx.errors import CheckpointError
from phalanx.train.types import Array, Model
from phalanx.train.variables.sparse_tables import is_index, is_table
from phalanx.train.variables.table import Keys, Table

KEYS = "table_keys"
"""The name of the numbers in a checkpoint: one for each sparse table of its model, in order."""


def list_tables(model: Model) -> list[Table]:
    """Return the sparse tables of a model, without the indexes of growing ones."""
    variables = getattr(model, "variables", ())
    return [variable for variable in variables if is_table(variable) and not is_index(variable)]


def number_keys(tables: Sequence[Table]) -> Array:
    """Return what a checkpoint has to say of the keys of these tables."""
    return np.asarray([int(table.keys) for table in tables], np.int64)


def check_keys(path: str, tables: Sequence[Table]) -> None:
    """Raise an error if the rows in a checkpoint belong to other keys.

    Rows that were found by a hash have the same shape as rows that were found by an index.
    """
    name = f"{KEYS}/.ATTRIBUTES/VARIABLE_VALUE"
    reader = tf.train.load_checkpoint(path)
    if not tables or not reader.has_tensor(name):
        return
    numbers = reader.get_tensor(name)
    for table, number in zip(tables, numbers, strict=False):
        if number != table.keys and number in tuple(Keys):
            raise CheckpointError(
                f"{path} has rows of {table.path} for {Keys(number).describe()}, but the model "
                f"finds them by {table.keys.describe()}: set hash_inputs of the layer as it was, "
                "or use another model_dir"
            )
