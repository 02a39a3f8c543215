"""A warm start reads weights that come from anywhere: numbers in one file, of the model's size."""

import contextlib
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

import h5py
from tests.train.model_dir.test_warm_start import load, make_model, values

from phalanx.errors import ConfigurationError
from phalanx.train.model_dir import weights_check, weights_file


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "old.weights.h5"
    make_model().save_weights(str(path))
    return path


def find_kernel(file: Any) -> Any:
    """The dataset of the layer `encoder`."""
    found: list[Any] = []
    file.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    return next(item for item in found if item.shape == (4, 3))


def link_to_itself(file: Any, folder: Path) -> None:
    file["layers/again"] = file["layers"]


def link_softly(file: Any, folder: Path) -> None:
    file["layers/soft"] = h5py.SoftLink("/layers")


def link_to_another_file(file: Any, folder: Path) -> None:
    with h5py.File(folder / "secret.h5", "w") as other:
        other["x"] = np.ones((4, 3), "float32")
    kernel = find_kernel(file)
    group, name = kernel.parent, kernel.name.rpartition("/")[2]
    del group[name]
    group[name] = h5py.ExternalLink(str(folder / "secret.h5"), "/x")


def store_elsewhere(file: Any, folder: Path) -> None:
    """The content of any file becomes the weights, which the next checkpoint then holds."""
    secret = folder / "secret"
    secret.write_bytes(b"S" * 48)
    kernel = find_kernel(file)
    group, name = kernel.parent, kernel.name.rpartition("/")[2]
    del group[name]
    external = [(str(secret), 0, 48)]
    group.create_dataset(name, (4, 3), "float32", external=external)


def use_virtual_dataset(file: Any, folder: Path) -> None:
    layout = h5py.VirtualLayout((4, 3), "float32")
    layout[:] = h5py.VirtualSource(str(folder / "secret.h5"), "x", (4, 3))
    file["layers"].create_virtual_dataset("virtual", layout)


def replace_kernel(file: Any, *arguments: Any, **options: Any) -> None:
    kernel = find_kernel(file)
    group, name = kernel.parent, kernel.name.rpartition("/")[2]
    del group[name]
    group.create_dataset(name, *arguments, **options)


def claim_much(file: Any, folder: Path) -> None:
    replace_kernel(file, (1 << 36,), "float32", chunks=(1 << 20,))


def claim_large_chunks(file: Any, folder: Path) -> None:
    """Reading one number decompresses a chunk of 1 GiB, most of which is not in the array."""
    replace_kernel(
        file, (4, 3), "float32", chunks=(1 << 27, 2), maxshape=(None, 3), compression="gzip"
    )


def claim_wide_items(file: Any, folder: Path) -> None:
    replace_kernel(file, (4, 3), np.dtype("V100000000"), chunks=(1, 1))


def hold_texts(file: Any, folder: Path) -> None:
    replace_kernel(file, (4, 3), h5py.string_dtype())


ATTACKS = [
    (link_to_itself, "linked twice"),
    (link_softly, "a link to another place"),
    (link_to_another_file, "a link to another place"),
    (store_elsewhere, "data outside of the file"),
    (use_virtual_dataset, "data outside of the file"),
    (claim_much, "expand to"),
    (claim_large_chunks, "expand to"),
    (claim_wide_items, "not numbers"),
    (hold_texts, "not numbers"),
]


@pytest.mark.parametrize(("attack", "reason"), ATTACKS, ids=[a.__name__ for a, _ in ATTACKS])
@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [("", ".keras"), ("encoder/", ".weights.h5")],
    ids=["whole", "by name"],
)
def test_hostile_hdf5_files_are_refused(
    attack: Callable[[Any, Path], None],
    reason: str,
    prefix: str,
    suffix: str,
    weights: Path,
    tmp_path: Path,
) -> None:
    with h5py.File(weights, "r+") as file:
        attack(file, tmp_path)
    path = weights
    if suffix == ".keras":
        path = tmp_path / "old.keras"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(weights, "model.weights.h5")
    with pytest.raises(ConfigurationError, match=reason):
        load(path, prefix)


@pytest.mark.parametrize("prefix", ["", "encoder/"], ids=["whole", "by name"])
def test_hostile_archives_are_refused(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.keras"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("model.weights.h5", "w") as file,
    ):
        for _ in range(512):
            file.write(bytes(1 << 20))
    with pytest.raises(ConfigurationError, match="expand to"):
        load(path, prefix)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../model.weights.h5", b"")
    with pytest.raises(ConfigurationError, match="holds no weights"):
        load(path, prefix)
    path.write_bytes(b"PK nothing")
    with pytest.raises(ConfigurationError, match=r"not a \.keras file"):
        load(path, prefix)


def test_damaged_archives_are_refused(weights: Path, tmp_path: Path) -> None:
    path, number = tmp_path / "old.keras", random.Random(0)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.write(weights, "model.weights.h5")
        content = path.read_bytes()
        for _ in range(200):
            changed = bytearray(content)
            changed[number.randrange(len(content))] ^= 1 << number.randrange(8)
            path.write_bytes(changed)
            with contextlib.suppress(ConfigurationError):
                weights_file._extract_weights(str(path), str(path), str(tmp_path))
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="compressed in another way"):
        load(path)


@pytest.mark.parametrize("prefix", ["", "encoder/"], ids=["whole", "by name"])
def test_damaged_hdf5_files_are_refused(prefix: str, weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:700])
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(weights, prefix)


def find_free_space(content: bytearray) -> int:
    """Where the heap with the texts has the size of its free space, which is its object 0."""
    position = content.index(b"GCOL") + 16
    while int.from_bytes(content[position : position + 2], "little"):
        size = int.from_bytes(content[position + 8 : position + 16], "little")
        position += 16 + -(-size // 8) * 8
    return position + 8


def test_file_that_hdf5_reads_without_end_is_refused(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_check, "_SECONDS", 2)
    content = bytearray(weights.read_bytes())
    size = find_free_space(content)
    content[size : size + 8] = bytes(8)
    weights.write_bytes(content)
    with pytest.raises(ConfigurationError, match="reading it does not end"):
        load(weights)


def test_compressed_weights_can_be_read(weights: Path, tmp_path: Path) -> None:
    expected = load(weights)["encoder/kernel"]
    with h5py.File(weights, "r+") as file:
        replace_kernel(file, data=find_kernel(file)[:], compression="gzip")
    np.testing.assert_array_equal(load(weights)["encoder/kernel"], expected)
    shutil.copy(weights, tmp_path / "copy.weights.h5")
    assert values(make_model()).keys() == load(tmp_path / "copy.weights.h5", "encoder/").keys()
