"""The codec: TFRecord frames, and protobuf messages from and to columns.

Two modules implement it with the same results: `_native` in C, and `fallback` in Python with
protobuf. The native one is used if it was built; `PHALANX_CODEC=python` disables it.

Spans are pairs of int64: the offset of a record's data, and its length.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

RAGGED = -1


class FrameStatus(IntEnum):
    """Why a scan stopped."""

    GOOD = 0
    PARTIAL = 1
    BAD_LENGTH = 2
    BAD_DATA = 3


class RawColumn(NamedTuple):
    """A decoded feature in Arrow's layout: int32 offsets, and one validity bit for each row.

    The validity bits are unused if no row lacks the feature.
    """

    name: bytes
    kind: int
    sequence: bool
    width: int
    values: Buffer
    value_offsets: Buffer
    step_offsets: Buffer
    row_offsets: Buffer
    validity: Buffer
    missing: int
    shortest: int
    longest: int
    narrowest: int
    widest: int


class SourceColumn(NamedTuple):
    """A feature to encode: int64 offsets; `present` has a byte for each row, None means all."""

    name: bytes
    kind: int
    sequence: bool
    width: int
    values: Buffer
    value_count: int
    value_offsets: Buffer | None
    step_offsets: Buffer | None
    step_count: int
    row_offsets: Buffer | None
    present: Buffer | None


class Codec(Protocol):
    """The functions that both implementations have."""

    CRC32C: str
    DecodeError: type[ValueError]

    def crc32c(self, data: Buffer, crc: int = 0, /) -> int:
        """The CRC-32C of data that follows data whose CRC-32C is `crc`."""

    def scan(
        self, data: Buffer, start: int, most: int, check_data: bool, /
    ) -> tuple[Buffer, int, int, int]:
        """Find records: (spans, offset after them, FrameStatus, length of the record there).

        The scan stops after `most` records, or at the first incomplete or damaged one.
        """

    def find(self, data: Buffer, start: int, /) -> tuple[int, bool]:
        """The offset of the next undamaged record, and whether it is complete in `data`."""

    def frame(self, records: Iterable[Buffer], /) -> Buffer:
        """The records as the bytes of a TFRecord file."""

    def decode(
        self,
        data: Buffer,
        spans: Buffer,
        columns: Sequence[tuple[bytes, int, bool, int]] | None,
        sequence: bool,
        /,
    ) -> list[RawColumn]:
        """Decode messages to `columns` (name, kind, sequence, width), or to all found if None."""

    def encode(
        self, columns: Sequence[SourceColumn], rows: int, sequence: bool, framed: bool, /
    ) -> tuple[Buffer, Buffer]:
        """Encode columns to messages: their bytes, and the offset at which each ends."""


def load_codec(name: str | None = None) -> Codec:
    """The codec called `native` or `python`; by default the native one if it was built."""
    if name != "python":
        try:
            return cast(Codec, import_module("phalanx.records._native"))
        except ImportError:
            if name == "native":
                raise
    return cast(Codec, import_module("phalanx.records.codec.fallback"))


codec = load_codec(os.environ.get("PHALANX_CODEC") or None)
