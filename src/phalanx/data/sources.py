"""Sources of examples: everything that has a length and can read ranges of its records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from phalanx.data.types import Array, Columns, Indices, Ranges
from phalanx.errors import DataError
from phalanx.records import expand
from phalanx.records.storage import file_size, is_remote, read_range
from phalanx.records.types import Paths

_LOCAL_BLOCK = 1 << 14
_REMOTE_BLOCK = 1 << 17


class Source(Protocol):
    """Examples that can be read in any order; implement it to read other formats."""

    def __len__(self) -> int: ...

    @property
    def block(self) -> int:
        """The number of neighbours to read at a time; the shuffled order depends on it."""

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Read some examples.

        Args:
            ranges: The ranges of records to read, each (begin, end).
            picks: The examples to return, in order, as indices into the concatenated ranges.

        Returns:
            A column for each feature.
        """


FileT = TypeVar("FileT", bound=Sized)


@dataclass(frozen=True)
class FileSet(Generic[FileT]):
    """Files whose records are numbered consecutively."""

    files: tuple[FileT, ...]

    @cached_property
    def _begins(self) -> list[int]:
        return [0, *accumulate(len(file) for file in self.files)]

    def __len__(self) -> int:
        return self._begins[-1]

    def locate(self, ranges: Ranges) -> Iterator[tuple[FileT, list[tuple[int, int]]]]:
        """The ranges within each file; consecutive ranges of one file come together."""
        parts = (part for begin, end in ranges for part in self._locate(begin, end))
        for number, group in groupby(parts, key=lambda part: part[0]):
            yield self.files[number], [(begin, end) for _, begin, end in group]

    def _locate(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        number = bisect_right(self._begins, begin) - 1
        while begin < end:
            base, stop = self._begins[number], min(end, self._begins[number + 1])
            if begin < stop:
                yield number, begin - base, stop - base
            begin = max(begin, stop)
            number += 1


def block_for(example_bytes: float, remote: bool = False) -> int:
    """The number of neighbours to read at a time: more if each read has a high latency."""
    return max(1, round((_REMOTE_BLOCK if remote else _LOCAL_BLOCK) / max(example_bytes, 1)))


@dataclass(frozen=True)
class ArraySource(Source):
    """Examples in memory: NumPy arrays of equal length."""

    arrays: Mapping[str, Array]

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"the arrays must have the same number of rows, and have {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def block(self) -> int:
        return 1

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        rows = np.concatenate([np.arange(*each) for each in ranges])[picks]
        return {name: values[rows] for name, values in self.arrays.items()}


@dataclass(frozen=True)
class BinarySource(Source):
    """Examples of a fixed number of bytes, in files without frames.

    # The binary version of CIFAR-10: a byte for the label, then the image.
    BinarySource.open("data_batch_*.bin", {"label": "uint8", "image": ("uint8", (3, 32, 32))})
    """

    files: tuple[str, ...]
    layout: np.dtype[np.void]

    @classmethod
    def open(cls, paths: Paths, layout: Mapping[str, Any]) -> BinarySource:
        """Open files.

        Args:
            paths: The files, as for `records.expand`.
            layout: The dtype of each feature, or its dtype and shape, in the order of the bytes.

        Returns:
            The source.
        """
        fields = [(name, *field) if isinstance(field, tuple) else (name, field)
                  for name, field in layout.items()]  # fmt: skip
        return cls(tuple(expand(paths)), np.dtype(fields))

    @cached_property
    def _files(self) -> FileSet[_BinaryFile]:
        size = self.layout.itemsize
        files = []
        for path in self.files:
            total = file_size(path)
            if total % size:
                raise DataError(f"{path} has {total} bytes, which is not a multiple of the {size} "
                                "bytes of an example")  # fmt: skip
            files.append(_BinaryFile(path, total // size))
        return FileSet(tuple(files))

    def __len__(self) -> int:
        return len(self._files)

    @property
    def block(self) -> int:
        return block_for(self.layout.itemsize, is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        size = self.layout.itemsize
        data = b"".join(
            read_range(file.path, begin * size, end * size)
            for file, parts in self._files.locate(ranges)
            for begin, end in parts
        )
        rows = np.frombuffer(data, self.layout)[picks]
        assert self.layout.names is not None
        return {name: np.ascontiguousarray(rows[name]) for name in self.layout.names}


@dataclass(frozen=True)
class _BinaryFile:
    path: str
    count: int

    def __len__(self) -> int:
        return self.count
