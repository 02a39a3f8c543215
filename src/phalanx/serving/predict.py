"""Predictions for the rows of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from phalanx.errors import DataError
from phalanx.serving.inputs import Batch
from phalanx.serving.outputs import Writer
from phalanx.train.export.signatures import Signature


def predict(
    signatures: Mapping[str, Signature],
    batches: Iterator[Batch],
    writer: Writer,
    notify: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write the predictions of all batches in order; returns how many rows there were."""
    import tensorflow as tf  # noqa: PLC0415

    rows = 0
    for batch in batches:
        try:
            outputs: Any = signatures[batch.signature].call(**batch.tensors)
        except tf.errors.InvalidArgumentError as error:
            raise DataError(
                f"the model does not take rows from {rows} on: {error.message}"
            ) from None
        writer.write({name: value.numpy() for name, value in outputs.items()}, batch.keys)
        rows += batch.rows
        notify(rows)
    if not rows:
        raise DataError("there was nothing to predict: the files are empty")
    return rows
