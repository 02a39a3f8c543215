"""Checks an HDF5 file of weights in a process of its own, with limits on memory and time.

HDF5 files can refer to other files and to themselves, and claim any size. Weights need none of
this: they are arrays of numbers, stored in the file, each in one place. The library that reads
these files can be misled further by a damaged one, so everything in it is read here once before
the training process reads it the same way.
"""

import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.errors import ConfigurationError

_SPARE_BYTES = 64 << 20
_LARGEST_NUMBER = 16
_READ_BYTES = 16 << 20
_SECONDS, _BYTES_PER_SECOND = 20, 10 << 20
_PROGRAM = f"import {__name__} as check; check.main()"


def check_weights(path: str, local: str, model_bytes: int) -> None:
    """Raise a ConfigurationError if a file cannot be one of weights for a model.

    Args:
        path: What errors call the file.
        local: The HDF5 file.
        model_bytes: The size of the model's variables. Compressed weights may expand to a few
            times this size, which includes the state of an optimizer.
    """
    most_bytes = 4 * model_bytes + _SPARE_BYTES
    seconds = _SECONDS + Path(local).stat().st_size // _BYTES_PER_SECOND
    # A library of threads would reserve memory that counts.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", _PROGRAM, path, local, str(most_bytes), str(seconds)]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, check=False, timeout=10 * seconds
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{path} cannot be read as HDF5 within {10 * seconds} s") from None
    if done.returncode == ConfigurationError.exit_code:
        raise ConfigurationError(done.stdout.decode(errors="replace"))
    if done.returncode == -signal.SIGXCPU:
        raise ConfigurationError(f"{path} cannot be read as HDF5: reading it does not end")
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = f"exit code {done.returncode}: {last}" if last else "it crashes the HDF5 library"
        raise ConfigurationError(f"{path} cannot be read as HDF5: {reason}")


def main() -> None:
    """Check the file that the arguments name; print what is wrong, and exit with 2."""
    path, local, most_bytes, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    import h5py  # noqa: F401, PLC0415 - before the limit of memory

    size = Path(local).stat().st_size
    _limit_resources(size + most_bytes + _SPARE_BYTES, seconds)
    try:
        try:
            _check(path, local, size, most_bytes)
        # The bindings of HDF5 raise errors of any kind.
        except Exception as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"{path} cannot be read as HDF5: {error}") from None
    except ConfigurationError as error:
        sys.stdout.write(str(error))
        sys.exit(error.exit_code)


def _limit_resources(more_bytes: int, seconds: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if pages:
        most = pages * resource.getpagesize() + more_bytes
        _limit(resource.RLIMIT_AS, most)
    _limit(resource.RLIMIT_CPU, seconds)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (most, hard))


def _check(path: str, local: str, size: int, most_bytes: int) -> None:
    import h5py  # noqa: PLC0415

    with h5py.File(Path(local)) as file:
        datasets = list(_walk(path, file))
        stored = claimed = 0
        for dataset in datasets:
            stored += dataset.id.get_storage_size()
            # A chunk is decompressed as a whole, even if the array has only a part of it.
            chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
            claimed += max(dataset.nbytes, chunk)
        if stored > size or claimed > stored + most_bytes:
            raise ConfigurationError(f"{path} has {size} bytes and would expand to {claimed}, "
                                     "much more than the model has")  # fmt: skip
        for dataset in datasets:
            _read(dataset)


def _walk(path: str, file: Any) -> Iterator[Any]:
    """Every dataset, without following a link that leads out of the file or in a circle."""
    import h5py  # noqa: PLC0415

    seen, groups = set[int](), [file]
    while groups:
        group = groups.pop()
        dict(group.attrs)
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


def _read(dataset: Any) -> None:
    """Read an array, in parts if it is large."""
    dict(dataset.attrs)
    if dataset.ndim == 0 or dataset.nbytes <= _READ_BYTES:
        dataset[()]
        return
    rows = max(1, len(dataset) * _READ_BYTES // dataset.nbytes)
    for begin in range(0, len(dataset), rows):
        dataset[begin : begin + rows]
