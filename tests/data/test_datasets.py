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


def make_cifar10_part(part: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(part)
    return random.integers(0, 256, (SIZE, 3072), np.uint8), random.integers(0, 10, SIZE)


@pytest.fixture
def cifar10_files(tmp_path: Path) -> Path:
    """The published files of CIFAR-10, with fewer images."""
    directory = tmp_path / "cifar-10-batches-py"
    directory.mkdir()
    for number, name in enumerate(PARTS):
        images, labels = make_cifar10_part(number)
        batch = {b"data": images, b"labels": labels.tolist(), b"batch_label": b"x"}
        (directory / name).write_bytes(pickle.dumps(batch, protocol=2))
    return directory


def check(out: Path) -> None:
    table = read_table(out / "train.tfrecord")
    assert table.column_names == ["image", "label"]
    assert table.num_rows == 5 * SIZE
    images, labels = make_cifar10_part(2)
    assert table["image"].to_pylist()[2 * SIZE : 3 * SIZE] == [row.tobytes() for row in images]
    assert table["label"].to_pylist()[2 * SIZE : 3 * SIZE] == labels.tolist()


def test_cifar10_convert_from_the_directory_and_its_parent(
    tmp_path: Path, cifar10_files: Path
) -> None:
    for source in (cifar10_files, cifar10_files.parent):
        counts = convert_cifar10(source, tmp_path / "out")
        assert counts == {"train": 5 * SIZE, "eval": SIZE}
        check(tmp_path / "out")


def test_cifar10_convert_with_validation_split(tmp_path: Path, cifar10_files: Path) -> None:
    counts = convert_cifar10(cifar10_files, tmp_path / "out", validation=True)
    assert counts == {"train": 4 * SIZE, "validation": SIZE, "eval": SIZE}
    table = read_table(tmp_path / "out" / "validation.tfrecord")
    assert table["label"].to_pylist() == make_cifar10_part(4)[1].tolist()


def test_cifar10_convert_from_the_archive(tmp_path: Path, cifar10_files: Path) -> None:
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(cifar10_files, "cifar-10-batches-py")
    convert_cifar10(tmp_path / "cifar.tar.gz", tmp_path / "out")
    check(tmp_path / "out")


def test_cifar10_convert_from_the_binary_version(tmp_path: Path) -> None:
    for number, name in enumerate(PARTS):
        images, labels = make_cifar10_part(number)
        rows = np.hstack([labels[:, None].astype(np.uint8), images])
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    convert_cifar10(tmp_path, tmp_path / "out")
    check(tmp_path / "out")


def test_cifar10_pickle_cannot_run_code(tmp_path: Path, cifar10_files: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'evil')!r}, 'w')",)

    (cifar10_files / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(
        DataError, match=r"data_batch_1 is not a batch of CIFAR-10: it refers to .*exec"
    ):
        convert_cifar10(cifar10_files, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_cifar10_invalid_sources_are_errors(tmp_path: Path, cifar10_files: Path) -> None:
    with pytest.raises(DataError, match="there is no"):
        convert_cifar10(tmp_path / "none", tmp_path / "out")
    (tmp_path / "text").write_text("nope")
    with pytest.raises(DataError, match="not an archive"):
        convert_cifar10(tmp_path / "text", tmp_path / "out")
    (cifar10_files / "test_batch").unlink()
    with pytest.raises(DataError, match=r"neither test_batch nor test_batch.bin"):
        convert_cifar10(cifar10_files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_convert_from_the_published_files(tmp_path: Path, packed: bool) -> None:
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


def test_missing_mnist_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no train-images-idx3-ubyte"):
        convert_mnist(tmp_path, tmp_path / "out")


def test_synthetic_classes_can_be_distinguished(tmp_path: Path) -> None:
    counts = make_synthetic(tmp_path, count=2000, classes=4, size=16, seed=3, shards=2)
    assert counts == {"train": 2000, "eval": 400}

    def load(name: str) -> tuple[np.ndarray, np.ndarray]:
        pipeline = Pipeline.from_records(tmp_path / f"{name}-*", raw={"image": "uint8"})
        [(columns, _)] = pipeline.batches(2000, epochs=1)
        images = np.asarray(columns["image"], np.float32).reshape(-1, 3, 16, 16)
        # Stripes of any phase have the same spectrum.
        spectrum = np.abs(np.fft.rfft2(images)).reshape(len(images), -1)
        return spectrum, np.asarray(columns["label"])

    train, labels = load("train")
    means = np.stack([train[labels == label].mean(axis=0) for label in range(4)])
    found, expected = load("eval")
    nearest = ((found[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == expected).mean() > 0.9
    assert np.bincount(expected).tolist() == [100] * 4
