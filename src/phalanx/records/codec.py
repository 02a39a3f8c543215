"""The codec: framing and messages, from bytes to columns and back.

There are two that do the same: `_native`, in C, and `fallback`, in pure Python with protobuf's upb
for the messages. The native one is used when it was built; `PHALANX_CODEC=python` turns it off.

    crc32c(data, crc=0)                    the checksum of data that follows data summed to `crc`
    scan(data, start, most, check_data)    the records in data: (spans, next, status, length); stops
                                           after `most` records or at the first that is not sound
    find(data, start)                      where the next sound record begins, or may begin if the
                                           data is too short to tell: (where, is it whole)
    frame(records)                         the records as the bytes of a file
    decode(data, spans, columns, sequence) messages to a RawColumn for each of `columns` (tuples of
                                           name, kind, sequence, width), or for all found if None
    encode(columns, rows, sequence, framed)  SourceColumns to messages: (bytes, where each ends)

Spans are pairs of int64: where a record's data begins, and its length.
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
    """A decoded feature, in Arrow's layout: offsets are int32, validity is a bit for each
    row, and is not used if no row lacks the feature."""

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
    """A feature to encode. Offsets are int64; `present` has a byte for each row, None means all."""

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
    """What both codecs offer; the module's text says what each does."""

    CRC32C: str
    DecodeError: type[ValueError]

    def crc32c(self, data: Buffer, crc: int = 0, /) -> int: ...

    def scan(
        self, data: Buffer, start: int, most: int, check_data: bool, /
    ) -> tuple[Buffer, int, int, int]: ...

    def find(self, data: Buffer, start: int, /) -> tuple[int, bool]: ...

    def frame(self, records: Iterable[Buffer], /) -> Buffer: ...

    def decode(
        self,
        data: Buffer,
        spans: Buffer,
        columns: Sequence[tuple[bytes, int, bool, int]] | None,
        sequence: bool,
        /,
    ) -> list[RawColumn]: ...

    def encode(
        self, columns: Sequence[SourceColumn], rows: int, sequence: bool, framed: bool, /
    ) -> tuple[Buffer, Buffer]: ...


def load_codec(name: str | None = None) -> Codec:
    """The codec called `name` (`native` or `python`); without a name, the fastest there is."""
    if name != "python":
        try:
            return cast(Codec, import_module("phalanx.records._native"))
        except ImportError:
            if name == "native":
                raise
    return cast(Codec, import_module("phalanx.records.fallback"))


codec = load_codec(os.environ.get("PHALANX_CODEC") or None)
