"""Datasets as TFRecord files: CIFAR-10, MNIST, and synthetic images.

Each example has the features `image`, in bytes, and `label`. Images of CIFAR-10 have 3072 bytes,
depth-major as published: the red channel, then the green, then the blue. Those of MNIST have 784
bytes, row by row.

The synthetic images are for demonstrations and tests, and easy but not trivial to learn: those of a
class have stripes of the same direction and color, with random phase, contrast and noise. Their
format is that of CIFAR-10.
"""

import gzip
import hashlib
import math
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pyarrow as pa

from phalanx.data.array_pickle import load_batch
from phalanx.data.tar_archive import TarMember, find_members
from phalanx.data.types import Array
from phalanx.errors import DataError
from phalanx.records import Feature, Kind, Schema, write_examples
from phalanx.records.storage.listing import SCHEMA_FILE

CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_MD5 = "c58f30108f718f92721af3b95e74349a"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR10_IMAGE_BYTES = 3072
_CIFAR10_PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]

MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
MNIST_FILES = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
_MNIST_VALIDATION = 10_000

CLASSES_FILE = "classes.txt"
_DOWNLOAD_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60
_WRITE_BATCH = 2048
_DRAW_BATCH = 4096
_MOST_FILE_BYTES = 64 << 20
_MOST_ARCHIVE_BYTES = 512 << 20

Progress = Callable[[int, int], None]
"""A function that is called with the bytes downloaded so far and in all."""
Reader = Callable[[str], bytes | None]


@dataclass(frozen=True)
class RecordNames:
    """The names that programs read the images by: `train.tfrecord`, with the feature `image`."""

    suffix: str = "tfrecord"
    image: str = "image"

    def __post_init__(self) -> None:
        if not self.image or self.image == "label" or not self.suffix.strip("."):
            raise DataError(
                f"the images cannot be the feature {self.image!r} of files that end with "
                f"{self.suffix!r}: use names such as image_raw and tfrecords"
            )

    def file(self, split: str) -> str:
        return f"{split}.{self.suffix.lstrip('.')}"

    def schema(self) -> Schema:
        return Schema((Feature(self.image, Kind.BYTES), Feature("label", Kind.INT64)))


@dataclass(frozen=True)
class LabelledImages:
    """Images as rows of bytes, and their labels."""

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> "LabelledImages":
        return LabelledImages(self.images[part], self.labels[part])

    def batches(self, names: RecordNames) -> Iterable[pa.RecordBatch]:
        for begin in range(0, len(self), _WRITE_BATCH):
            part = self[begin : begin + _WRITE_BATCH]
            images = pa.array([image.tobytes() for image in part.images], pa.binary())
            labels = pa.array(part.labels.astype(np.int64))
            yield pa.RecordBatch.from_arrays([images, labels], [names.image, "label"])


def write_splits(
    train: LabelledImages,
    evaluation: LabelledImages,
    classes: Iterable[str],
    out: str | Path,
    *,
    shards: int | None,
    validation: int = 0,
    names: RecordNames = RecordNames(),
) -> dict[str, int]:
    """Write each split to `OUT/NAME.tfrecord`, or to its shards, and return the counts.

    The last `validation` images of `train` become the split `validation`. The schema and the names
    of the classes are written beside them.
    """
    splits = {"train": train, "eval": evaluation}
    if validation:
        train, held_out = train[:-validation], train[-validation:]
        splits = {"train": train, "validation": held_out, "eval": evaluation}
    directory = Path(out)
    counts = {
        split: write_examples(directory / names.file(split), images.batches(names), shards=shards)
        for split, images in splits.items()
    }
    names.schema().save(directory / SCHEMA_FILE)
    (directory / CLASSES_FILE).write_text("".join(f"{name}\n" for name in classes))
    return counts


def download(url: str, md5: str, directory: Path, *, progress: Progress | None = None) -> Path:
    path = directory / url.rpartition("/")[2]
    digest, done = hashlib.md5(usedforsecurity=False), 0
    try:
        with urlopen(url, timeout=_TIMEOUT_SECONDS) as response, path.open("wb") as file:
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(_DOWNLOAD_BLOCK):
                file.write(block)
                digest.update(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    except (URLError, TimeoutError, ConnectionError) as error:
        raise DataError(f"cannot download {url}: {error}; download it on another machine, "
                        "and name it with --source") from None  # fmt: skip
    if digest.hexdigest() != md5:
        raise DataError(f"{url} has the MD5 {digest.hexdigest()}, not {md5}: "
                        "it is damaged, or another file")  # fmt: skip
    return path


def convert_cifar10(
    source: str | Path | None,
    out: str | Path,
    *,
    validation: bool = False,
    shards: int | None = None,
    progress: Progress | None = None,
    names: RecordNames = RecordNames(),
) -> dict[str, int]:
    """Write train, eval and optionally validation TFRecords to the directory `out`.

    The source is the directory or archive of the Python or the binary version; None downloads it.
    With `validation`, the last 10,000 of the 50,000 training images become that split.
    """
    with _open_cifar10(source, progress) as read:
        parts = [_read_cifar10_part(read, name) for name in _CIFAR10_PARTS]
    images, labels = zip(*((part.images, part.labels) for part in parts[:5]), strict=True)
    train = LabelledImages(np.concatenate(images), np.concatenate(labels))
    held_out = len(parts[4]) if validation else 0
    return write_splits(
        train, parts[5], CLASSES, out, shards=shards, validation=held_out, names=names
    )


@contextmanager
def _open_cifar10(source: str | Path | None, progress: Progress | None) -> Iterator[Reader]:
    """A function that reads a file of the source by its name, in any directory."""
    if source is None:
        with tempfile.TemporaryDirectory() as directory:
            archive = download(CIFAR10_URL, CIFAR10_MD5, Path(directory), progress=progress)
            with _open_cifar10(archive, progress) as read:
                yield read
        return
    path = Path(source)
    if path.is_dir():
        yield lambda name: next(
            (_read_file(p) for p in (path / name, *path.glob(f"*/{name}")) if p.is_file()), None
        )
        return
    if not path.exists():
        raise DataError(
            f"there is no {path}: give the directory cifar-10-batches-py or its archive"
        )
    try:
        with _open_compressed(path) as file:
            members = find_members(file, _MOST_ARCHIVE_BYTES)
            yield lambda name: _read_member(path, file, name, members.get(name))
    except (EOFError, OSError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path} is not an archive of CIFAR-10 (.tar.gz or .tar): {error}"
        ) from None


def _open_compressed(path: Path) -> BinaryIO:
    """Open a file that may be compressed with gzip."""
    with path.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if is_compressed else path.open("rb")


def _too_large(path: Path | str, most: int) -> DataError:
    return DataError(f"{path} has more than {most >> 20} MiB: it is not a published file")


def _read_file(path: Path) -> bytes:
    """Read a file that may be compressed with gzip."""
    with _open_compressed(path) as file:
        try:
            data = file.read(_MOST_FILE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}") from None
    if len(data) > _MOST_FILE_BYTES:
        raise _too_large(path, _MOST_FILE_BYTES)
    return data


def _read_member(path: Path, file: BinaryIO, name: str, member: TarMember | None) -> bytes | None:
    if member is None:
        return None
    if member.size > _MOST_FILE_BYTES:
        raise _too_large(f"{name} in {path}", _MOST_FILE_BYTES)
    file.seek(member.offset)
    return file.read(member.size)


def _read_cifar10_part(read: Reader, name: str) -> LabelledImages:
    data = read(name)
    if data is not None:
        try:
            return LabelledImages(*load_batch(data))
        except ValueError as error:
            raise DataError(f"{name} is not a batch of CIFAR-10: {error}") from None
    data = read(f"{name}.bin")
    if data is None:
        raise DataError(f"neither {name} nor {name}.bin is in the source: it is not the complete "
                        "CIFAR-10, in its Python or its binary version")  # fmt: skip
    if len(data) % (_CIFAR10_IMAGE_BYTES + 1) or not data:
        raise DataError(f"{name}.bin has {len(data)} bytes, not a multiple of 3073")
    rows = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR10_IMAGE_BYTES + 1)
    return LabelledImages(rows[:, 1:], rows[:, 0].astype(np.int64))


def convert_mnist(
    source: str | Path | None,
    out: str | Path,
    *,
    validation: bool = False,
    shards: int | None = None,
    progress: Progress | None = None,
    names: RecordNames = RecordNames(),
) -> dict[str, int]:
    """Write train, eval and optionally validation TFRecords to the directory `out`.

    The source is the directory of the four published files, compressed or not; None downloads them.
    """
    with ExitStack() as stack:
        if source is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, md5 in MNIST_FILES.items():
                download(f"{MNIST_URL}{name}.gz", md5, directory, progress=progress)
        else:
            directory = Path(source)
        train, test = read_mnist(directory, "train"), read_mnist(directory, "t10k")
    held_out = _MNIST_VALIDATION if validation else 0
    digits = map(str, range(10))
    return write_splits(train, test, digits, out, shards=shards, validation=held_out, names=names)


def read_mnist(directory: Path, part: str) -> LabelledImages:
    """Read the images and labels of a part, train or t10k, from the published files."""
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
    data = _read_file(path)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path} is not a file of MNIST: it begins with {data[:4]!r}")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    if len(data) - header != math.prod(shape):
        raise DataError(f"{path} should hold {shape} bytes, and holds {len(data) - header}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def make_synthetic(
    out: str | Path,
    *,
    count: int = 10_000,
    evaluation: int | None = None,
    classes: int = 10,
    size: int = 32,
    seed: int = 0,
    shards: int | None = None,
    names: RecordNames = RecordNames(),
) -> dict[str, int]:
    """Write `count` training images and `evaluation` others, by default a fifth, to `out`."""
    if count < 1 or classes < 2 or size < 4:
        raise DataError(f"{count} images of {size} x {size} in {classes} classes cannot be made: "
                        "take 1 or more, of 4 x 4 or larger, in 2 classes or more")  # fmt: skip
    eval_count = max(count // 5, 1) if evaluation is None else evaluation
    train = draw(count, classes, size, seed)
    test = draw(eval_count, classes, size, seed + 1_000_003)
    directions = [f"{180 * number / classes:.3g}°" for number in range(classes)]
    return write_splits(train, test, directions, out, shards=shards, names=names)


def draw(count: int, classes: int, size: int, seed: int) -> LabelledImages:
    """`count` random images, evenly distributed over the classes."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % classes)
    images = np.empty((count, 3 * size * size), np.uint8)
    for begin in range(0, count, _DRAW_BATCH):
        part = slice(begin, begin + _DRAW_BATCH)
        images[part] = _draw(labels[part], classes, size, random)
    return LabelledImages(images, labels)


def _draw(labels: Array, classes: int, size: int, random: np.random.Generator) -> Array:
    angles = np.pi * labels / classes
    rows, columns = np.mgrid[0:size, 0:size] / size
    across = np.cos(angles)[:, None, None] * columns + np.sin(angles)[:, None, None] * rows
    phases = random.random((len(labels), 1, 1))
    stripes = np.sin(2 * np.pi * (4 * across + phases))
    colors = 0.5 + 0.5 * np.cos(2 * np.pi * (labels[:, None] / classes + np.arange(3) / 3))
    contrasts = random.uniform(40, 90, (len(labels), 1, 1, 1))
    images = 128 + contrasts * colors[:, :, None, None] * stripes[:, None]
    images += random.normal(0, 30, images.shape)
    flat: Array = np.clip(images, 0, 255).astype(np.uint8).reshape(len(labels), -1)
    return flat
