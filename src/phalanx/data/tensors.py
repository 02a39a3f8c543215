"""Conversion of columns to tensors, and of schemas to specifications for `tf.io.parse_example`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import tensorflow as tf

from phalanx.data.types import Array, Column, Columns, Default, Specs, Tensor
from phalanx.records import Kind, Schema
from phalanx.records.arrow import is_list, is_number

_TYPES = {Kind.BYTES: tf.string, Kind.FLOAT: tf.float32, Kind.INT64: tf.int64}


def parse_spec(
    schema: Schema, defaults: Mapping[str, Default] | None = None
) -> Specs | tuple[Specs, Specs]:
    """The `features` argument of `tf.io.parse_example` for a schema.

    For SequenceExamples, the two arguments of `tf.io.parse_sequence_example`: context and sequence
    features.
    """
    context: Specs = {}
    steps: Specs = {}
    for feature in schema.features:
        specs, dtype = steps if feature.sequence else context, _TYPES[feature.kind]
        if feature.shape == (None,):
            specs[feature.name] = tf.io.RaggedFeature(dtype)
        elif feature.sequence:
            specs[feature.name] = tf.io.FixedLenSequenceFeature(feature.shape, dtype)
        else:
            default = (defaults or {}).get(feature.name)
            specs[feature.name] = tf.io.FixedLenFeature(feature.shape, dtype, default)
    return (context, steps) if schema.is_sequence else context


def signature_of(columns: Columns, batch_size: int | None) -> Specs:
    """The types and shapes of the tensors that such columns are converted to."""
    return {name: _spec(column, batch_size) for name, column in columns.items()}


def _spec(column: Column, batch_size: int | None) -> tf.TypeSpec:
    if isinstance(column, np.ndarray):
        return tf.TensorSpec((batch_size, *column.shape[1:]), tf.as_dtype(column.dtype))
    depth, type_ = _unwrap(column.type)
    if pa.types.is_fixed_size_list(column.type):
        return tf.TensorSpec((batch_size, column.type.list_size), _tensor_type(type_))
    if depth == 0:
        return tf.TensorSpec((batch_size,), _tensor_type(type_))
    return tf.RaggedTensorSpec(
        (batch_size, *[None] * depth), _tensor_type(type_), ragged_rank=depth
    )


def _unwrap(type_: pa.DataType) -> tuple[int, pa.DataType]:
    depth = 0
    while is_list(type_):
        depth, type_ = depth + 1, type_.value_type
    return depth, type_


def _tensor_type(type_: pa.DataType) -> tf.DType:
    if is_number(type_):
        return tf.as_dtype(type_.to_pandas_dtype())
    return tf.string


def to_tensors(columns: Columns) -> dict[str, Tensor]:
    """Convert columns to what a generator of `tf.data` yields: arrays and ragged tensors."""
    return {name: _to_tensor(column) for name, column in columns.items()}


def _to_tensor(column: Column) -> Tensor:
    if isinstance(column, np.ndarray):
        return column
    if pa.types.is_fixed_size_list(column.type):
        return _flat(column.flatten()).reshape(len(column), column.type.list_size)
    if not is_list(column.type):
        return _flat(column)
    splits = np.asarray(column.offsets).astype(np.int64)
    values = column.values.slice(splits[0], splits[-1] - splits[0])
    return tf.RaggedTensor.from_row_splits(_to_tensor(values), splits - splits[0])


def _flat(values: pa.Array) -> Array:
    if is_number(values.type):
        return np.asarray(values)
    result = np.empty(len(values), object)
    result[:] = values.to_pylist()
    return result
