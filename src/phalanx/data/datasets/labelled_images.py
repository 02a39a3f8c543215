"""Labelled images, and writing them to TFRecord files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from phalanx.data.types import Array
from phalanx.records import Feature, Kind, Schema, write_examples
from phalanx.records.storage.listing import SCHEMA_FILE

SCHEMA = Schema((Feature("image", Kind.BYTES), Feature("label", Kind.INT64)))
CLASSES_FILE = "classes.txt"
_BATCH = 2048


@dataclass(frozen=True)
class LabelledImages:
    """Images as rows of bytes, and their labels."""

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> LabelledImages:
        return LabelledImages(self.images[part], self.labels[part])

    def batches(self) -> Iterable[pa.RecordBatch]:
        """Arrow batches with the features `image` and `label`."""
        for begin in range(0, len(self), _BATCH):
            images = np.ascontiguousarray(self.images[begin : begin + _BATCH])
            size = images.shape[1]
            offsets = np.arange(len(images) + 1, dtype=np.int32) * size
            column = pa.Array.from_buffers(
                pa.binary(), len(images), [None, pa.py_buffer(offsets), pa.py_buffer(images)]
            )
            labels = pa.array(self.labels[begin : begin + _BATCH].astype(np.int64))
            yield pa.RecordBatch.from_arrays([column, labels], ["image", "label"])


def write_splits(
    train: LabelledImages,
    evaluation: LabelledImages,
    classes: Iterable[str],
    out: str | Path,
    *,
    shards: int | None,
    validation: int = 0,
) -> dict[str, int]:
    """Write each split to `OUT/NAME.tfrecord`, or to its shards, and return the counts.

    The last `validation` images of `train` become the split `validation`. The schema and the names
    of the classes are written beside them.
    """
    splits = {"train": train, "eval": evaluation}
    if validation:
        splits = {"train": train[:-validation], "validation": train[-validation:],
                  "eval": evaluation}  # fmt: skip
    directory = Path(out)
    counts = {
        name: write_examples(directory / f"{name}.tfrecord", images.batches(), shards=shards)
        for name, images in splits.items()
    }
    SCHEMA.save(directory / SCHEMA_FILE)
    (directory / CLASSES_FILE).write_text("".join(f"{name}\n" for name in classes))
    return counts
