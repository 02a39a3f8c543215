"""CIFAR-10: 60,000 images of 32 x 32 pixels in ten classes.

`image` has 3072 bytes, depth-major as published: the red channel, then the green, then the blue.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.data.datasets.download import download
from phalanx.data.datasets.labelled_images import LabelledImages, write_splits
from phalanx.errors import DataError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_IMAGE_BYTES = 3072
_PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
_SAFE_CLASSES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}

Reader = Callable[[str], bytes | None]


def convert_cifar10(
    source: str | Path | None,
    out: str | Path,
    *,
    validation: bool = False,
    shards: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Write train, eval and optionally validation TFRecords to the directory `out`.

    The source is the directory or archive of the Python or the binary version; None downloads it.
    With `validation`, the last 10,000 of the 50,000 training images become that split.
    """
    with _open(source, progress) as read:
        parts = [_read_part(read, name) for name in _PARTS]
    train = LabelledImages(
        np.concatenate([part.images for part in parts[:5]]),
        np.concatenate([part.labels for part in parts[:5]]),
    )
    held_out = len(parts[4]) if validation else 0
    return write_splits(train, parts[5], CLASSES, out, shards=shards, validation=held_out)


@contextmanager
def _open(
    source: str | Path | None, progress: Callable[[int, int], None] | None
) -> Iterator[Reader]:
    """A function that reads a file of the source by its name, in any directory."""
    if source is None:
        with tempfile.TemporaryDirectory() as directory:
            archive = download(URL, MD5, Path(directory), progress=progress)
            with _open(archive, progress) as read:
                yield read
        return
    path = Path(source)
    if path.is_dir():
        yield lambda name: _read_below(path, name)
        return
    if not path.exists():
        raise DataError(
            f"there is no {path}: give the directory cifar-10-batches-py or its archive"
        )
    try:
        with tarfile.open(path) as archive_file:
            members = {Path(m.name).name: m for m in archive_file.getmembers() if m.isfile()}
            yield lambda name: _read_member(archive_file, members.get(name))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path} is not an archive of CIFAR-10: {error}") from None


def _read_below(root: Path, name: str) -> bytes | None:
    for path in (root / name, *root.glob(f"*/{name}")):
        if path.is_file():
            return path.read_bytes()
    return None


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo | None) -> bytes | None:
    file = None if member is None else archive.extractfile(member)
    return None if file is None else file.read()


def _read_part(read: Reader, name: str) -> LabelledImages:
    data = read(name)
    if data is not None:
        return _parse_pickle(name, data)
    data = read(f"{name}.bin")
    if data is None:
        raise DataError(f"neither {name} nor {name}.bin is in the source: it is not the complete "
                        "CIFAR-10, in its Python or its binary version")  # fmt: skip
    if len(data) % (_IMAGE_BYTES + 1) or not data:
        raise DataError(f"{name}.bin has {len(data)} bytes, not a multiple of 3073")
    rows = np.frombuffer(data, np.uint8).reshape(-1, _IMAGE_BYTES + 1)
    return LabelledImages(rows[:, 1:], rows[:, 0].astype(np.int64))


class _SafeUnpickler(pickle.Unpickler):
    """Loads arrays and nothing else: a downloaded pickle must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _SAFE_CLASSES:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _parse_pickle(name: str, data: bytes) -> LabelledImages:
    try:
        batch = _SafeUnpickler(io.BytesIO(data), encoding="bytes").load()
        images = np.asarray(batch[b"data"], np.uint8)
        labels = np.asarray(batch[b"labels"], np.int64)
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, EOFError, IndexError) as error:
        raise DataError(f"{name} is not a batch of CIFAR-10: {error}") from None
    if images.ndim != 2 or images.shape[1] != _IMAGE_BYTES or len(images) != len(labels):
        raise DataError(f"{name} holds {images.shape} images and {len(labels)} labels, "
                        "not (n, 3072) and n")  # fmt: skip
    return LabelledImages(images, labels)
