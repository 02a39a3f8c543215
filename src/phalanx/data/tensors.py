"""Columns as tensors, and schemas as TensorFlow's parsing specifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from phalanx.data.sources import Column, Columns
from phalanx.records import Feature, Kind, Schema
from phalanx.records.arrow import is_list

_TYPES = {Kind.BYTES: tf.string, Kind.FLOAT: tf.float32, Kind.INT64: tf.int64}


def parse_spec(
    schema: Schema, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any] | tuple[dict[str, Any], dict[str, Any]]:
    """What `tf.io.parse_example` needs to read the schema's Examples.

    For SequenceExamples it is the two arguments of `tf.io.parse_sequence_example`: the features of
    the context and those of the steps.
    """
    context = {f.name: _parse_feature(f, defaults or {}) for f in schema.features if not f.sequence}
    if not schema.is_sequence:
        return context
    steps = {f.name: _parse_steps(f) for f in schema.features if f.sequence}
    return context, steps


def _parse_feature(feature: Feature, defaults: Mapping[str, Any]) -> Any:
    if feature.shape == (None,):
        return tf.io.RaggedFeature(_TYPES[feature.kind])
    return tf.io.FixedLenFeature(feature.shape, _TYPES[feature.kind], defaults.get(feature.name))


def _parse_steps(feature: Feature) -> Any:
    if feature.shape == (None,):
        return tf.io.RaggedFeature(_TYPES[feature.kind])
    return tf.io.FixedLenSequenceFeature(feature.shape, _TYPES[feature.kind])


def signature_of(columns: Columns, batch_size: int | None) -> dict[str, Any]:
    """The types and shapes of the tensors that columns like these become."""
    return {name: _spec(column, batch_size) for name, column in columns.items()}


def _spec(column: Column, batch_size: int | None) -> Any:
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


def _tensor_type(type_: pa.DataType) -> Any:
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return tf.as_dtype(type_.to_pandas_dtype())
    return tf.string


def to_tensors(columns: Columns) -> dict[str, Any]:
    """Columns as what a generator of `tf.data` yields: arrays, and ragged tensors."""
    return {name: _to_tensor(column) for name, column in columns.items()}


def _to_tensor(column: Column) -> Any:
    if isinstance(column, np.ndarray):
        return column
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        return _flat(column.flatten()).reshape(len(column), size)
    if not is_list(column.type):
        return _flat(column)
    splits = np.asarray(column.offsets).astype(np.int64)
    values = column.values.slice(splits[0], splits[-1] - splits[0])
    return tf.RaggedTensor.from_row_splits(_to_tensor(values), splits - splits[0])


def _flat(values: pa.Array) -> np.ndarray[Any, Any]:
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return np.asarray(values)
    result = np.empty(len(values), object)
    result[:] = values.to_pylist()
    return result
