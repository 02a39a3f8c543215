from __future__ import annotations

import gzip
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from phalanx.data import Pipeline
from phalanx.data.datasets import convert_cifar10, convert_mnist, make_synthetic
from phalanx.errors import DataError
from phalanx.records import read_arrays, read_table

PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
SIZE = 20


def pictures(part: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(part)
    return random.integers(0, 256, (SIZE, 3072), np.uint8), random.integers(0, 10, SIZE)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The files of CIFAR-10 as they are published, with fewer pictures."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate(PARTS):
        images, labels = pictures(number)
        batch = {b"data": images, b"labels": labels.tolist(), b"batch_label": b"x"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def check(out: Path) -> None:
    table = read_table(out / "train.tfrecord")
    assert table.column_names == ["image", "label"]
    assert table.num_rows == 5 * SIZE
    images, labels = pictures(2)
    assert table["image"].to_pylist()[2 * SIZE : 3 * SIZE] == [row.tobytes() for row in images]
    assert table["label"].to_pylist()[2 * SIZE : 3 * SIZE] == labels.tolist()


def test_cifar10_from_its_folder_and_the_one_above(tmp_path: Path, published: Path) -> None:
    for source in (published, published.parent):
        counts = convert_cifar10(source, tmp_path / "out")
        assert counts == {"train": 5 * SIZE, "eval": SIZE}
        check(tmp_path / "out")


def test_cifar10_with_validation(tmp_path: Path, published: Path) -> None:
    counts = convert_cifar10(published, tmp_path / "out", validation=True)
    assert counts == {"train": 4 * SIZE, "validation": SIZE, "eval": SIZE}
    table = read_table(tmp_path / "out" / "validation.tfrecord")
    assert table["label"].to_pylist() == pictures(4)[1].tolist()


def test_cifar10_from_its_archive(tmp_path: Path, published: Path) -> None:
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(published, "cifar-10-batches-py")
    convert_cifar10(tmp_path / "cifar.tar.gz", tmp_path / "out")
    check(tmp_path / "out")


def test_cifar10_from_its_binary_version(tmp_path: Path) -> None:
    for number, name in enumerate(PARTS):
        images, labels = pictures(number)
        rows = np.hstack([labels[:, None].astype(np.uint8), images])
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    convert_cifar10(tmp_path, tmp_path / "out")
    check(tmp_path / "out")


def test_a_pickle_cannot_run_code(tmp_path: Path, published: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'evil')!r}, 'w')",)

    (published / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(
        DataError, match=r"data_batch_1 is not a batch of CIFAR-10: it wants .*exec"
    ):
        convert_cifar10(published, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_what_is_not_cifar10_is_said(tmp_path: Path, published: Path) -> None:
    with pytest.raises(DataError, match="there is no"):
        convert_cifar10(tmp_path / "none", tmp_path / "out")
    (tmp_path / "text").write_text("nope")
    with pytest.raises(DataError, match="not an archive"):
        convert_cifar10(tmp_path / "text", tmp_path / "out")
    (published / "test_batch").unlink()
    with pytest.raises(DataError, match=r"neither test_batch nor test_batch.bin"):
        convert_cifar10(published, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(tmp_path: Path, packed: bool) -> None:
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


def test_mnist_without_its_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no train-images-idx3-ubyte"):
        convert_mnist(tmp_path, tmp_path / "out")


def test_synthetic_pictures_can_be_told_apart(tmp_path: Path) -> None:
    counts = make_synthetic(tmp_path, count=2000, classes=4, size=16, seed=3, shards=2)
    assert counts == {"train": 2000, "eval": 400}

    def load(name: str) -> tuple[np.ndarray, np.ndarray]:
        pipeline = Pipeline.from_records(tmp_path / f"{name}-*", raw={"image": "uint8"})
        [(columns, _)] = pipeline.batches(2000, epochs=1)
        pictures = np.asarray(columns["image"], np.float32).reshape(-1, 3, 16, 16)
        # Stripes of any phase have the same spectrum: what a first layer of filters sees.
        spectrum = np.abs(np.fft.rfft2(pictures)).reshape(len(pictures), -1)
        return spectrum, np.asarray(columns["label"])

    train, labels = load("train")
    means = np.stack([train[labels == label].mean(axis=0) for label in range(4)])
    found, expected = load("eval")
    nearest = ((found[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == expected).mean() > 0.9
    assert np.bincount(expected).tolist() == [100] * 4
