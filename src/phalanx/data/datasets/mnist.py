"""MNIST: 70,000 handwritten digits of 28 x 28 pixels. `image` has 784 bytes, row by row."""

from __future__ import annotations

import gzip
import struct
import tempfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from phalanx.data.datasets.download import download
from phalanx.data.datasets.labelled_images import LabelledImages, write_splits
from phalanx.data.types import Array
from phalanx.errors import DataError

URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
FILES = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
_VALIDATION = 10_000


def convert_mnist(
    source: str | Path | None,
    out: str | Path,
    *,
    validation: bool = False,
    shards: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Write train, eval and optionally validation TFRecords to the directory `out`.

    The source is the directory of the four published files, compressed or not; None downloads them.
    """
    with ExitStack() as stack:
        if source is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, md5 in FILES.items():
                download(f"{URL}{name}.gz", md5, directory, progress=progress)
        else:
            directory = Path(source)
        train, test = _read(directory, "train"), _read(directory, "t10k")
    held_out = _VALIDATION if validation else 0
    return write_splits(train, test, map(str, range(10)), out, shards=shards, validation=held_out)


def _read(directory: Path, part: str) -> LabelledImages:
    images = _read_array(directory, f"{part}-images-idx3-ubyte", 3)
    labels = _read_array(directory, f"{part}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise DataError(f"{directory} has {len(images)} images and {len(labels)} labels of {part}")
    return LabelledImages(images.reshape(len(images), -1), labels.astype(np.int64))


def _read_array(directory: Path, name: str, dimensions: int) -> Array:
    """Read a file in IDX format: zeros, a type, the number of dimensions, the sizes, the data."""
    path = next((p for p in (directory / name, directory / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise DataError(f"there is no {name} or {name}.gz in {directory}")
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}") from None
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path} is not a file of MNIST: it begins with {data[:4]!r}")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    if len(data) - header != np.prod(shape, dtype=np.int64):
        raise DataError(f"{path} should hold {shape} bytes, and holds {len(data) - header}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
