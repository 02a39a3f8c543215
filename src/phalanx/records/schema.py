"""Schemas: the names, kinds and shapes of the features of Examples; finding them in the records."""

import json
import operator
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from phalanx.errors import DataError, RecordError
from phalanx.records.codec import RAGGED, RawColumn, codec
from phalanx.records.framing import Chunk, read_chunks
from phalanx.records.html import draw_table
from phalanx.records.storage import exists, open_input, write_bytes
from phalanx.records.storage.listing import SCHEMA_FILE, expand
from phalanx.records.types import Array, Paths

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 1
SUMMARY_HEADER = ("feature", "type", "missing", "values each", "range")


class Kind(StrEnum):
    """The kind of a feature's values. Numbers of other types are stored as one of these."""

    BYTES = "bytes"
    FLOAT = "float"
    INT64 = "int64"

    @property
    def number(self) -> int:
        """The field number of the kind in the message Feature."""
        return _NUMBERS[self]


_NUMBERS = {Kind.BYTES: 1, Kind.FLOAT: 2, Kind.INT64: 3}
KINDS = {number: kind for kind, number in _NUMBERS.items()}


@dataclass(frozen=True)
class Feature:
    """One feature, which becomes one column.

    Attributes:
        shape: `()` for a single value, `(3,)` for three, `(None,)` for any number.
        sequence: Whether it is a feature list of a SequenceExample, whose steps have this shape.
    """

    name: str
    kind: Kind
    shape: tuple[int | None, ...] = ()
    sequence: bool = False

    def __post_init__(self) -> None:
        size = self.shape[0] if self.shape else 1
        if len(self.shape) > 1 or (size is not None and not 0 <= size < 2**31):
            raise DataError(f"feature {self.name!r} cannot have the shape {self.shape}: "
                            "use () for one value, (n,) for n, (None,) for any number")  # fmt: skip

    @property
    def width(self) -> int:
        """The number of values in a row; RAGGED for any number."""
        size = self.shape[0] if self.shape else 1
        return RAGGED if self.sequence or size is None else size

    def describe(self) -> str:
        """Describe kind and shape, as in `int64`, `float[3]`, `bytes[any]` or `float[steps][3]`."""
        inner = "" if not self.shape else f"[{'any' if self.shape[0] is None else self.shape[0]}]"
        return f"{self.kind}{'[steps]' if self.sequence else ''}{inner}"


@dataclass(frozen=True)
class Schema:
    """The features of Examples, or of SequenceExamples if one of them is a sequence.

        summarize("train-*.tfrecord").schema.save("schema.json")

    A schema saved as `schema.json` beside the data is used by all readers that are given none.
    """

    features: tuple[Feature, ...]

    def __post_init__(self) -> None:
        twice = sorted(name for name, count in Counter(self.names).items() if count > 1)
        if twice:
            raise DataError(f"the schema names these features twice: {', '.join(twice)}")

    def _repr_html_(self) -> str:
        kind = "SequenceExample" if self.is_sequence else "Example"
        rows = [(feature.name, feature.describe()) for feature in self.features]
        return draw_table(f"schema of {kind}s", ("feature", "type"), rows)

    @property
    def is_sequence(self) -> bool:
        """Are the records SequenceExamples?"""
        return any(feature.sequence for feature in self.features)

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        there = ", ".join(self.names) or "none"
        raise DataError(f"there is no feature {name!r}: there are {there}")

    def select(self, names: list[str]) -> Self:
        """The schema of only these features; readers do not decode the others."""
        return type(self)(tuple(self[name] for name in names))

    def codec_columns(self) -> list[tuple[bytes, int, bool, int]]:
        """The columns for `Codec.decode`."""
        return [(f.name.encode(), f.kind.number, f.sequence, f.width) for f in self.features]

    def to_arrow(self) -> "pa.Schema":
        """The Arrow schema of the columns that the features are decoded to."""
        from phalanx.records.arrow import to_arrow_schema  # noqa: PLC0415

        return to_arrow_schema(self)

    @classmethod
    def from_arrow(cls, schema: "pa.Schema") -> "Schema":
        """The schema of the features that Arrow columns of these types are encoded to."""
        from phalanx.records.arrow import from_arrow_schema  # noqa: PLC0415

        return from_arrow_schema(schema)

    def dumps(self) -> str:
        """Serialize the schema to JSON."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def loads(cls, text: str, source: str = "the schema") -> Self:
        """Parse a schema from JSON.

        Args:
            text: The JSON.
            source: What errors call it, such as its path.

        Returns:
            The schema.

        Raises:
            DataError: The text is not a schema.
        """
        try:
            found = _parse_json(text)
            if found["version"] != _VERSION:
                raise DataError(f"{source} has version {found['version']}, not {_VERSION}")
            features = tuple(
                Feature(
                    _check_name(f["name"]),
                    Kind(f["kind"]),
                    tuple(size if size is None else operator.index(size) for size in f["shape"]),
                    bool(f["sequence"]),
                )
                for f in found["features"]
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{source} is not a schema of records: {error!r}") from None
        return cls(features)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the schema to a file."""
        write_bytes(os.fspath(path), self.dumps().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a schema from a file."""
        name = os.fspath(path)
        with open_input(name) as file:
            return cls.loads(file.read().decode("utf-8", "replace"), name)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not the name of a feature")
    name.encode()  # A lone surrogate is not a name, and an error here.
    return name


@dataclass(frozen=True)
class FeatureSummary:
    """Statistics of one feature.

    Attributes:
        feature: Its name, kind and shape.
        missing: The number of records without it.
        values: The number of values in all records.
        shortest: The smallest number of values, or of steps of a sequence, in a record.
        longest: The largest number of values, or of steps of a sequence, in a record.
        least: The smallest value that is not NaN; of bytes, the smallest length.
        greatest: The largest value that is not NaN; of bytes, the largest length.
    """

    feature: Feature
    missing: int
    values: int
    shortest: int
    longest: int
    least: float | None
    greatest: float | None

    def describe(self, records: int) -> tuple[str, ...]:
        """Return a row for `SUMMARY_HEADER`; `records` is the number of all records."""
        share = f"{100 * self.missing / records:.3g}%" if self.missing else "-"
        what = "bytes " if self.feature.kind is Kind.BYTES else ""
        values = "-" if self.least is None else f"{what}{self.least:g} to {self.greatest:g}"
        many = f" to {self.longest}" if self.shortest != self.longest else ""
        lengths = f"{self.shortest}{many}"
        return self.feature.name, self.feature.describe(), share, lengths, values


@dataclass(frozen=True)
class Summary:
    """The number of records in some files, and statistics of their features."""

    records: int
    features: tuple[FeatureSummary, ...]

    def _repr_html_(self) -> str:
        rows = [found.describe(self.records) for found in self.features]
        return draw_table(f"{self.records:,} records", SUMMARY_HEADER, rows)

    @property
    def schema(self) -> Schema:
        """The schema that fits all records that were read.

        If a context feature and a feature list have the same name, it has the feature list.
        """
        found = [summary.feature for summary in self.features]
        lists = {feature.name for feature in found if feature.sequence}
        return Schema(tuple(each for each in found if each.sequence or each.name not in lists))


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
    directory, slash, _ = files[0].rpartition("/")
    saved = f"{directory}{slash}{SCHEMA_FILE}"
    if schema is None and exists(saved):
        schema = Schema.load(saved)
    return schema or infer_schema(files, most=most)


def summarize(paths: Paths, *, most: int | None = None) -> Summary:
    """Read records and summarize their features.

    Args:
        paths: The files, as for `expand`.
        most: How many records to read; by default all of them.

    Returns:
        The summary.

    Raises:
        RecordError: A record is damaged, or holds another kind of values than those before it. Only
            int64 and float may be mixed, which makes the feature float.
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
                counter = found.setdefault(key, _FeatureCounter(*key, records))
                counter.add(path, chunk, column)
            for counter in found.values():
                counter.end_chunk(len(chunk))
            records += len(chunk)
            if most is not None and records >= most:
                break
    return _finish(records, found.values())


def summarize_chunk(chunk: Chunk) -> Summary:
    counters = []
    for column in decode_chunk("<memory>", chunk, None):
        counters.append(_FeatureCounter(column.name, column.sequence, 0))
        counters[-1].add("<memory>", chunk, column)
    return _finish(len(chunk), counters)


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
    def __init__(self, name: bytes, sequence: bool, rows_before: int) -> None:
        self.name, self.sequence = name, sequence
        self.kind, self.missing, self.values = 0, rows_before, 0
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
        # As in one chunk: a feature holds floats if some of its values are int64.
        is_mixed = {self.kind, column.kind} == {2, 3}
        if self.kind not in (0, column.kind) and not is_mixed:
            row = _first_present(column)
            raise RecordError(path, chunk.index + row, chunk.offset_of(row),
                f"feature {self.name.decode('utf-8', 'replace')!r} holds {KINDS[column.kind]} "
                f"values, and {KINDS[self.kind]} values were expected",
            )  # fmt: skip
        self.kind = 2 if is_mixed else column.kind
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
        if column.kind == 2:
            values = values[~np.isnan(values)]
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
        lengths, widths = (self.shortest, self.longest), (self.narrowest, self.widest)
        low, high = widths if self.sequence else lengths
        shape: tuple[int | None, ...] = (None,)
        if low == high and high > 0:
            shape = () if high == 1 else (high,)
        try:
            name = self.name.decode()
        except UnicodeDecodeError:
            raise DataError(f"a feature is called {self.name!r}, which is not UTF-8: "
                            "give a schema without it") from None  # fmt: skip
        feature = Feature(name, KINDS[self.kind], shape, self.sequence)
        sizes = self.values, self.shortest, self.longest
        return FeatureSummary(feature, self.missing, *sizes, self.least, self.greatest)


def _finish(records: int, counters: Iterable[_FeatureCounter]) -> Summary:
    """Features that hold no list in any record have no kind, and are left out."""
    summaries = [counter.finish() for counter in counters if counter.kind]
    return Summary(records, tuple(sorted(summaries, key=lambda summary: summary.feature.name)))


def _first_present(column: RawColumn) -> int:
    for index, byte in enumerate(memoryview(column.validity).cast("B")):
        if byte:
            return 8 * index + (byte & -byte).bit_length() - 1
    return 0
