"""Summaries of files of Examples: the schema that fits all records, and statistics."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.errors import DataError, RecordError
from phalanx.records.codec import RawColumn, codec
from phalanx.records.framing import Chunk, read_chunks
from phalanx.records.schema import KINDS, Feature, Schema, saved_schema
from phalanx.records.storage.listing import expand
from phalanx.records.types import Array, Paths


@dataclass(frozen=True)
class FeatureSummary:
    """Statistics of one feature.

    Attributes:
        feature: Its name, kind and shape.
        missing: The number of records without it.
        values: The number of values in all records.
        shortest: The smallest number of values, or of steps of a sequence, in a record.
        longest: The largest number of values, or of steps of a sequence, in a record.
        least: The smallest value; of bytes, the smallest length.
        greatest: The largest value; of bytes, the largest length.
    """

    feature: Feature
    missing: int
    values: int
    shortest: int
    longest: int
    least: float | None
    greatest: float | None


@dataclass(frozen=True)
class Summary:
    """The number of records in some files, and statistics of their features."""

    records: int
    features: tuple[FeatureSummary, ...]

    @property
    def schema(self) -> Schema:
        """The schema that fits all records that were read."""
        return Schema(tuple(summary.feature for summary in self.features))


def infer_schema(paths: Paths, *, most: int | None = None) -> Schema:
    """Find the schema that fits all records.

    Args:
        paths: The files, as for `expand`.
        most: How many records to read; by default all of them.

    Returns:
        The schema.
    """
    return summarize(paths, most=most).schema


def find_schema(
    files: list[str], schema: Schema | None = None, *, most: int | None = None
) -> Schema:
    """The schema given, or else the one saved beside the files, or else the one inferred."""
    return schema or saved_schema(files) or infer_schema(files, most=most)


def summarize(paths: Paths, *, most: int | None = None) -> Summary:
    """Read records and summarize their features.

    Args:
        paths: The files, as for `expand`.
        most: How many records to read; by default all of them.

    Returns:
        The summary.

    Raises:
        RecordError: A record is damaged, or holds another kind of values than those before it.
    """
    found: dict[tuple[bytes, bool], _FeatureCounter] = {}
    records = 0
    for path in expand(paths):
        left = None if most is None else most - records
        if left == 0:
            break
        for chunk in read_chunks(path, most=left):
            for column in decode_chunk(path, chunk, None):
                key = column.name, column.sequence
                if key not in found:
                    found[key] = _FeatureCounter(column.name, column.sequence, records)
                found[key].add(path, chunk, column)
            rows = len(chunk)
            for counter in found.values():
                counter.end_chunk(rows)
            records += rows
            if most is not None and records >= most:
                break
    return _finish(records, found.values())


def summarize_chunk(chunk: Chunk) -> Summary:
    """Summarize records in memory."""
    counters = []
    for column in decode_chunk("<memory>", chunk, None):
        counters.append(_FeatureCounter(column.name, column.sequence, 0))
        counters[-1].add("<memory>", chunk, column)
    return _finish(len(chunk), counters)


def _finish(records: int, counters: Iterable[_FeatureCounter]) -> Summary:
    """Features that hold no list in any record have no kind, and are left out."""
    summaries = [counter.finish() for counter in counters if counter.kind]
    return Summary(records, tuple(sorted(summaries, key=lambda summary: summary.feature.name)))


def decode_chunk(path: str, chunk: Chunk, schema: Schema | None) -> list[RawColumn]:
    """Decode the records of a chunk; an error names the record."""
    columns = None if schema is None else schema.codec_columns()
    sequence = schema is None or schema.is_sequence
    try:
        raw = codec.decode(chunk.data, chunk.spans, columns, sequence)
    except codec.DecodeError as error:
        row, feature, text = error.args
        raise RecordError(path, chunk.index + row, chunk.offset_of(row),
                          text if feature is None else f"feature {feature!r} {text}",
        ) from None  # fmt: skip
    return [RawColumn(*column) for column in raw]


class _FeatureCounter:
    """Collects the summary of a feature, chunk by chunk."""

    def __init__(self, name: bytes, sequence: bool, rows_before: int) -> None:
        self.name, self.sequence = name, sequence
        self.kind = 0
        self.missing = rows_before
        self.values = 0
        self.shortest, self.longest = sys.maxsize, 0
        self.narrowest, self.widest = sys.maxsize, 0
        self.least: float | None = None
        self.greatest: float | None = None
        self._seen_in_chunk = False

    def add(self, path: str, chunk: Chunk, column: RawColumn) -> None:
        self._seen_in_chunk = True
        self.missing += column.missing
        present = len(chunk) - column.missing
        if column.kind == 0 or present == 0:
            return
        if self.kind not in (0, column.kind):
            row = _first_present(column)
            raise RecordError(path, chunk.index + row, chunk.offset_of(row),
                f"feature {self.name.decode('utf-8', 'replace')!r} holds {KINDS[column.kind]} "
                f"values, and {KINDS[self.kind]} values were expected",
            )  # fmt: skip
        self.kind = column.kind
        self._measure(column)

    def _measure(self, column: RawColumn) -> None:
        import numpy as np  # noqa: PLC0415

        self.shortest = min(self.shortest, column.shortest)
        self.longest = max(self.longest, column.longest)
        if memoryview(column.step_offsets).nbytes > 4:
            self.narrowest = min(self.narrowest, column.narrowest)
            self.widest = max(self.widest, column.widest)
        values: Array
        if column.kind == 1:
            values = np.diff(np.frombuffer(memoryview(column.value_offsets), np.int32))
        else:
            dtype = np.dtype("float32" if column.kind == 2 else "int64")
            values = np.frombuffer(memoryview(column.values), dtype)
        self.values += len(values)
        if len(values) == 0:
            return
        least, greatest = values.min().item(), values.max().item()
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def end_chunk(self, rows: int) -> None:
        if not self._seen_in_chunk:
            self.missing += rows
        self._seen_in_chunk = False

    def finish(self) -> FeatureSummary:
        low, high = self.shortest, self.longest
        if self.sequence:
            low, high = self.narrowest, self.widest
        shape: tuple[int | None, ...] = (None,)
        if low == high and high > 0:
            shape = () if high == 1 else (high,)
        try:
            name = self.name.decode()
        except UnicodeDecodeError:
            raise DataError(f"a feature is called {self.name!r}, which is not UTF-8: "
                            "give a schema without it") from None  # fmt: skip
        feature = Feature(name, KINDS[self.kind], shape, self.sequence)
        return FeatureSummary(
            feature,
            missing=self.missing,
            values=self.values,
            shortest=self.shortest,
            longest=self.longest,
            least=self.least,
            greatest=self.greatest,
        )


def _first_present(column: RawColumn) -> int:
    for index, byte in enumerate(memoryview(column.validity).cast("B")):
        if byte:
            return 8 * index + (byte & -byte).bit_length() - 1
    return 0
