from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.datasets import convert_mnist
from phalanx.errors import DataError
from phalanx.records import read_arrays


@pytest.mark.parametrize("packed", [True, False])
def test_convert_from_the_published_files(tmp_path: Path, packed: bool) -> None:
    images = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
    labels = np.array([7, 1, 2], np.uint8)
    for part in ("train", "t10k"):
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            data = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            data += values.tobytes()
            path = tmp_path / f"{part}-{name}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
            else:
                path.write_bytes(data)
    assert convert_mnist(tmp_path, tmp_path / "out") == {"train": 3, "eval": 3}
    found = read_arrays(tmp_path / "out" / "eval.tfrecord")
    assert found["label"].tolist() == [7, 1, 2]
    assert found["image"].tolist() == [image.tobytes() for image in images]


def test_missing_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no train-images-idx3-ubyte"):
        convert_mnist(tmp_path, tmp_path / "out")
