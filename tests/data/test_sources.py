from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.batches import check_reads_200_ids

from phalanx.data import Pipeline
from phalanx.errors import DataError


def test_from_arrays() -> None:
    images = np.arange(200 * 12).reshape(200, 2, 2, 3)
    pipeline = Pipeline.from_arrays({"id": np.arange(200), "image": images}, seed=1)
    check_reads_200_ids(pipeline)
    for batch in pipeline.dataset(10, epochs=1):
        np.testing.assert_array_equal(batch["image"], images[batch["id"].numpy()])
    with pytest.raises(DataError, match="same number of rows"):
        Pipeline.from_arrays({"a": np.arange(2), "b": np.arange(3)})


def test_from_binary(tmp_path: Path) -> None:
    rows = np.zeros(200, np.dtype([("id", "uint8"), ("image", "uint8", (3, 2, 2))]))
    rows["id"] = np.arange(200)
    rows["image"] = np.arange(200)[:, None, None, None]
    (tmp_path / "1.bin").write_bytes(rows[:50].tobytes())
    (tmp_path / "2.bin").write_bytes(rows[50:].tobytes())
    layout = {"id": "uint8", "image": ("uint8", (3, 2, 2))}
    pipeline = Pipeline.from_binary(tmp_path / "*.bin", layout, seed=1)
    check_reads_200_ids(pipeline)
    for batch in pipeline.dataset(9, epochs=1):
        np.testing.assert_array_equal(batch["image"][:, 2, 1, 1], batch["id"])
    (tmp_path / "3.bin").write_bytes(b"x" * 14)
    with pytest.raises(DataError, match="14 bytes, which is not a multiple of the 13"):
        len(Pipeline.from_binary(tmp_path / "*.bin", layout))
