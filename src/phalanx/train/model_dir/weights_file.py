"""Weights in Keras' files, `.keras` and `.h5`, which are checked before Keras reads them."""

import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.weights_check import check_weights

_MEMBER = "model.weights.h5"
_BLOCK = 1 << 20
_SPARE_BYTES = 64 << 20
_MOST_EXPANSION = 20
_NOT_AN_ARCHIVE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError),
    *(NotImplementedError, RuntimeError, ValueError),
)
"""What zipfile raises when it reads a damaged file."""


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
        check_weights(path, local, model_bytes)
        yield local


def _extract_weights(path: str, local: str, folder: str) -> str:
    """Copy the weights out of a `.keras` file, which is a zip archive."""
    target = Path(folder) / _MEMBER
    try:
        with zipfile.ZipFile(local) as archive:
            member = archive.getinfo(_MEMBER)
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ConfigurationError(
                    f"the weights in {path} are compressed in another way than Keras does"
                )
            size = member.file_size
            most = _MOST_EXPANSION * Path(local).stat().st_size + _SPARE_BYTES
            if size > most:
                raise ConfigurationError(f"the weights in {path} would expand to {size} bytes")
            with archive.open(_MEMBER) as source, target.open("wb") as file:
                while block := source.read(_BLOCK):
                    file.write(block)
    except KeyError:
        raise ConfigurationError(f"{path} holds no weights: there is no {_MEMBER} in it") from None
    except _NOT_AN_ARCHIVE as error:
        raise ConfigurationError(f"{path} is not a .keras file: {error}") from None
    return str(target)
