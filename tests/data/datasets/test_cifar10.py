from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.datasets import convert_cifar10
from phalanx.errors import DataError
from phalanx.records import read_table

PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
SIZE = 20


def make_images(part: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(part)
    return random.integers(0, 256, (SIZE, 3072), np.uint8), random.integers(0, 10, SIZE)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The published files of CIFAR-10, with fewer images."""
    directory = tmp_path / "cifar-10-batches-py"
    directory.mkdir()
    for number, name in enumerate(PARTS):
        images, labels = make_images(number)
        batch = {b"data": images, b"labels": labels.tolist(), b"batch_label": b"x"}
        (directory / name).write_bytes(pickle.dumps(batch, protocol=2))
    return directory


def check(out: Path) -> None:
    table = read_table(out / "train.tfrecord")
    assert table.column_names == ["image", "label"]
    assert table.num_rows == 5 * SIZE
    images, labels = make_images(2)
    assert table["image"].to_pylist()[2 * SIZE : 3 * SIZE] == [row.tobytes() for row in images]
    assert table["label"].to_pylist()[2 * SIZE : 3 * SIZE] == labels.tolist()


def test_convert_from_the_directory_and_its_parent(tmp_path: Path, published: Path) -> None:
    for source in (published, published.parent):
        counts = convert_cifar10(source, tmp_path / "out")
        assert counts == {"train": 5 * SIZE, "eval": SIZE}
        check(tmp_path / "out")


def test_convert_with_validation_split(tmp_path: Path, published: Path) -> None:
    counts = convert_cifar10(published, tmp_path / "out", validation=True)
    assert counts == {"train": 4 * SIZE, "validation": SIZE, "eval": SIZE}
    table = read_table(tmp_path / "out" / "validation.tfrecord")
    assert table["label"].to_pylist() == make_images(4)[1].tolist()


def test_convert_from_the_archive(tmp_path: Path, published: Path) -> None:
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(published, "cifar-10-batches-py")
    convert_cifar10(tmp_path / "cifar.tar.gz", tmp_path / "out")
    check(tmp_path / "out")


def test_convert_from_the_binary_version(tmp_path: Path) -> None:
    for number, name in enumerate(PARTS):
        images, labels = make_images(number)
        rows = np.hstack([labels[:, None].astype(np.uint8), images])
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    convert_cifar10(tmp_path, tmp_path / "out")
    check(tmp_path / "out")


def test_pickle_cannot_run_code(tmp_path: Path, published: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'evil')!r}, 'w')",)

    (published / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(
        DataError, match=r"data_batch_1 is not a batch of CIFAR-10: it refers to .*exec"
    ):
        convert_cifar10(published, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_invalid_sources_are_errors(tmp_path: Path, published: Path) -> None:
    with pytest.raises(DataError, match="there is no"):
        convert_cifar10(tmp_path / "none", tmp_path / "out")
    (tmp_path / "text").write_text("nope")
    with pytest.raises(DataError, match="not an archive"):
        convert_cifar10(tmp_path / "text", tmp_path / "out")
    (published / "test_batch").unlink()
    with pytest.raises(DataError, match=r"neither test_batch nor test_batch.bin"):
        convert_cifar10(published, tmp_path / "out")
    assert not (tmp_path / "out").exists()
