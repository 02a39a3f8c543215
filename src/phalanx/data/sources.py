"""Where examples come from: anything that has a length and can read ranges of its records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from phalanx.data.order import Indices
from phalanx.errors import DataError
from phalanx.records import expand
from phalanx.records.storage import file_size, is_remote, read_range

_LOCAL_BLOCK = 1 << 14
_REMOTE_BLOCK = 1 << 17

Ranges = Sequence[tuple[int, int]]

Column: TypeAlias = Any
"""A NumPy array whose rows are the examples, or an Arrow array."""

Columns = dict[str, Column]


class Source(Protocol):
    """Examples that can be read in any order, many at a time."""

    def __len__(self) -> int: ...

    @property
    def block(self) -> int:
        """How many neighbours are worth reading at a time; a shuffled order depends on it."""

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples that the ranges hold when they are put one after the other.

        `picks` are their places and order; there is a column for each feature.
        """


class _Counted(Protocol):
    def __len__(self) -> int: ...


FileT = TypeVar("FileT", bound=_Counted)


@dataclass(frozen=True)
class FileSet(Generic[FileT]):
    """Many files whose records are counted through."""

    files: tuple[FileT, ...]

    @cached_property
    def _begins(self) -> list[int]:
        return [0, *accumulate(len(file) for file in self.files)]

    def __len__(self) -> int:
        return self._begins[-1]

    def cut(self, ranges: Ranges) -> Iterator[tuple[FileT, list[tuple[int, int]]]]:
        """The ranges in terms of each file; neighbours that are in the same file stay together."""
        pieces = (piece for begin, end in ranges for piece in self._cut(begin, end))
        for number, group in groupby(pieces, key=lambda piece: piece[0]):
            yield self.files[number], [(begin, end) for _, begin, end in group]

    def _cut(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        number = bisect_right(self._begins, begin) - 1
        while begin < end:
            base, stop = self._begins[number], min(end, self._begins[number + 1])
            if begin < stop:
                yield number, begin - base, stop - base
            begin = max(begin, stop)
            number += 1


def block_for(example_bytes: float, remote: bool = False) -> int:
    """How many neighbours to read at a time: more where each read takes long to begin."""
    return max(1, round((_REMOTE_BLOCK if remote else _LOCAL_BLOCK) / max(example_bytes, 1)))


def record_numbers(ranges: Ranges, picks: Indices) -> Indices:
    """The numbers of the records that the picks stand for."""
    return cast(Indices, np.concatenate([np.arange(*each) for each in ranges])[picks])


@dataclass(frozen=True)
class ArraySource:
    """Examples in memory: NumPy arrays with a row for each."""

    arrays: Mapping[str, np.ndarray[Any, Any]]

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"the arrays must have the same number of rows, and have {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def block(self) -> int:
        """One: in memory every row is as near as the next."""
        return 1

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        numbers = record_numbers(ranges, picks)
        return {name: values[numbers] for name, values in self.arrays.items()}


@dataclass(frozen=True)
class BinarySource:
    """Examples that all have the same number of bytes, in files without frames.

    # CIFAR-10's binary version: a byte for the label, then the picture
    BinarySource.open("data_batch_*.bin", {"label": "uint8", "image": ("uint8", (3, 32, 32))})
    """

    files: tuple[str, ...]
    layout: np.dtype[np.void]

    @classmethod
    def open(cls, paths: Any, layout: Mapping[str, Any]) -> BinarySource:
        """The files that paths and globs name; the layout gives each part's type and shape."""
        parts = [(name, *part) if isinstance(part, tuple) else (name, part)
                 for name, part in layout.items()]  # fmt: skip
        return cls(tuple(expand(paths)), np.dtype(parts))

    @cached_property
    def _files(self) -> FileSet[_BinaryFile]:
        size = self.layout.itemsize
        files = []
        for path in self.files:
            total = file_size(path)
            if total % size:
                raise DataError(f"{path} has {total} bytes, which examples of {size} bytes do not "
                                f"fill: {total % size} are left over")  # fmt: skip
            files.append(_BinaryFile(path, total // size))
        return FileSet(tuple(files))

    def __len__(self) -> int:
        return len(self._files)

    @property
    def block(self) -> int:
        """As many examples as there are in a read that is worth its while."""
        return block_for(self.layout.itemsize, is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        size = self.layout.itemsize
        data = b"".join(
            read_range(file.path, begin * size, end * size)
            for file, pieces in self._files.cut(ranges)
            for begin, end in pieces
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
