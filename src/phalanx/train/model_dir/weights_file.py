"""Weights in Keras' files, `.keras` and `.h5`, which are checked before Keras reads them.

HDF5 files can refer to other files and to themselves, and claim any size. Weights need none of
this: they are arrays of numbers, stored in the file, each in one place.
"""

import math
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from phalanx.errors import ConfigurationError

_MEMBER = "model.weights.h5"
_BLOCK = 1 << 20
_SPARE_BYTES = 64 << 20
_LARGEST_NUMBER = 16
_MOST_EXPANSION = 20


@contextmanager
def open_weights_file(path: str, model_bytes: int) -> Iterator[str]:
    """The path of a local HDF5 file with the weights, after checking it.

    Args:
        path: A `.keras` or `.h5` file.
        model_bytes: The size of the model's variables. Compressed weights may expand to a few
            times this size, which includes the state of an optimizer.

    Raises:
        ConfigurationError: The file is not one that Keras writes.
    """
    with tempfile.TemporaryDirectory() as folder:
        local = path
        if "://" in path:
            local = f"{folder}/{path.rpartition('/')[2]}"
            tf.io.gfile.copy(path, local)
        if path.endswith(".keras"):
            local = _extract_weights(path, local, folder)
        try:
            _check(path, local, 4 * model_bytes + _SPARE_BYTES)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise ConfigurationError(f"{path} cannot be read as HDF5: {error}") from None
        yield local


def _extract_weights(path: str, local: str, folder: str) -> str:
    """Copy the weights out of a `.keras` file, which is a zip archive."""
    target = Path(folder) / _MEMBER
    try:
        with zipfile.ZipFile(local) as archive:
            size = archive.getinfo(_MEMBER).file_size
            most = _MOST_EXPANSION * Path(local).stat().st_size + _SPARE_BYTES
            if size > most:
                raise ConfigurationError(f"the weights in {path} would expand to {size} bytes")
            with archive.open(_MEMBER) as source, target.open("wb") as file:
                while block := source.read(_BLOCK):
                    file.write(block)
    except KeyError:
        raise ConfigurationError(f"{path} holds no weights: there is no {_MEMBER} in it") from None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ConfigurationError(f"{path} is not a .keras file: {error}") from None
    return str(target)


def _check(path: str, local: str, most_bytes: int) -> None:
    import h5py  # noqa: PLC0415

    stored = claimed = 0
    with h5py.File(Path(local)) as file:
        for dataset in _walk(path, file):
            stored += dataset.id.get_storage_size()
            # A chunk is decompressed as a whole, even if the array has only a part of it.
            chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
            claimed += max(dataset.nbytes, chunk)
    size = Path(local).stat().st_size
    if stored > size or claimed > stored + most_bytes:
        raise ConfigurationError(f"{path} has {size} bytes and would expand to {claimed}, much "
                                 "more than the model has")  # fmt: skip


def _walk(path: str, file: Any) -> Iterator[Any]:
    """Every dataset, without following a link that leads out of the file or in a circle."""
    import h5py  # noqa: PLC0415

    seen, groups = set[int](), [file]
    while groups:
        group = groups.pop()
        for key in group:
            name = f"{path}: {group.name.rstrip('/')}/{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise ConfigurationError(f"{name} is a link to another place, which is not allowed")
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                raise ConfigurationError(f"{name} is linked twice in the file")
            seen.add(address)
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif isinstance(item, h5py.Dataset):
                _check_dataset(name, item)
                yield item


def _check_dataset(name: str, dataset: Any) -> None:
    if dataset.external or dataset.is_virtual:
        raise ConfigurationError(f"{name} has data outside of the file, which is not allowed")
    dtype = dataset.dtype
    # bfloat16 is stored as two bytes without a type.
    is_number = dtype.kind in "biufcV" and not dtype.hasobject and dtype.fields is None
    if not is_number or dtype.itemsize > _LARGEST_NUMBER:
        raise ConfigurationError(f"{name} holds {dtype}, not numbers")
