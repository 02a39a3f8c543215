"""The codec: TFRecord frames, and protobuf messages from and to columns.

Two modules implement it with the same results: `_native` in C, and `fallback` in Python with
protobuf. The native one is used if it was built; `PHALANX_CODEC=python` disables it.

Spans are pairs of int64: the offset of a record's data, and its length.
"""

import os
from collections.abc import Iterable, Sequence
from enum import IntEnum
from importlib import import_module
from typing import NamedTuple, Protocol, TypeAlias, cast

from phalanx.records.types import Buffer

RAGGED = -1
MOST_PADDING = 128 << 20
"""How many bytes the rows that lack a feature may take in a batch; also in native/decode.h."""
MOST_INT64S = 512 << 20
"""How many bytes the int64 values of a batch may take, eight each; also in native/decode.h."""
ColumnSpecs: TypeAlias = Sequence[tuple[bytes, int, bool, int]]
"""The name, kind, sequence and width of each column to decode."""


class FrameStatus(IntEnum):
    """Why a scan stopped."""

    GOOD = 0
    PARTIAL = 1
    BAD_LENGTH = 2
    BAD_DATA = 3


class RawColumn(NamedTuple):
    """A decoded feature in Arrow's layout: int32 offsets, and a validity bit per row if needed."""

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

    def find(self, data: Buffer, start: int, /) -> int:
        """The offset of the next header whose length fits its checksum, or that is incomplete."""

    def frame(self, records: Iterable[Buffer], /) -> Buffer:
        """The records as the bytes of a TFRecord file."""

    def decode(
        self, data: Buffer, spans: Buffer, columns: ColumnSpecs | None, sequence: bool, /
    ) -> list[RawColumn]:
        """Decode messages to `columns`, or to all found if None.

        A message can take up to 12 times its size. Rows that lack a feature take up to
        MOST_PADDING bytes in all, and int64 values up to MOST_INT64S.
        """

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
