"""What is in a file of Examples: found out by reading it, or given.

    summary = summarize("train-*.tfrecord")     # reads everything: exact
    summary.schema.save("schema.json")

A schema's columns come out the same for every batch of every file. One that is saved beside the data
as `schema.json` is used by all readers that are given none.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from phalanx.errors import DataError, RecordError
from phalanx.records.codec import RAGGED, RawColumn, codec
from phalanx.records.framing import Chunk, Paths, read_chunks
from phalanx.records.storage import expand, open_input, open_output

if TYPE_CHECKING:
    import pyarrow as pa

FILE_NAME = "schema.json"
_VERSION = 1


class Kind(StrEnum):
    """The three kinds of values there are. Numbers of other types are stored as one of these."""

    BYTES = "bytes"
    FLOAT = "float"
    INT64 = "int64"

    @property
    def number(self) -> int:
        """The kind's number in the message Feature."""
        return _NUMBERS[self]


_NUMBERS = {Kind.BYTES: 1, Kind.FLOAT: 2, Kind.INT64: 3}
_KINDS = {number: kind for kind, number in _NUMBERS.items()}


@dataclass(frozen=True)
class Feature:
    """One feature: a column of the data.

    The shape is `()` for a single value, `(3,)` for always three, `(None,)` for any number. A
    `sequence` is a feature list of a SequenceExample: any number of steps of that shape.
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
        """How many values the codec should find in a row; RAGGED for any number."""
        if self.sequence:
            return RAGGED
        if not self.shape:
            return 1
        return RAGGED if self.shape[0] is None else self.shape[0]

    def describe(self) -> str:
        """In words, as in `int64`, `float[3]` or `bytes[any]`; steps are written first."""
        inner = "" if not self.shape else f"[{'any' if self.shape[0] is None else self.shape[0]}]"
        return f"{self.kind}{'[steps]' if self.sequence else ''}{inner}"


@dataclass(frozen=True)
class Schema:
    """The features of Examples, or of SequenceExamples if any is a sequence."""

    features: tuple[Feature, ...]

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"the schema names these features twice: {', '.join(twice)}")

    @property
    def is_sequence(self) -> bool:
        """Are the messages SequenceExamples?"""
        return any(feature.sequence for feature in self.features)

    @property
    def names(self) -> list[str]:
        """The features' names."""
        return [feature.name for feature in self.features]

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise DataError(f"there is no feature {name!r}: there are {', '.join(self.names) or 'none'}")

    def select(self, names: list[str]) -> Schema:
        """Only these features; the others are then passed over when reading."""
        return Schema(tuple(self[name] for name in names))

    def codec_columns(self) -> list[tuple[bytes, int, bool, int]]:
        """The schema as the codec takes it."""
        return [(f.name.encode(), f.kind.number, f.sequence, f.width) for f in self.features]

    def to_arrow(self) -> pa.Schema:
        """As a schema of Arrow, with the metadata that leads back to this one."""
        from phalanx.records.arrow import to_arrow_schema  # noqa: PLC0415

        return to_arrow_schema(self)

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """The features that columns of these types become."""
        from phalanx.records.arrow import from_arrow_schema  # noqa: PLC0415

        return from_arrow_schema(schema)

    def dumps(self) -> str:
        """As JSON."""
        features = [
            {"name": f.name, "kind": f.kind.value, "shape": list(f.shape), "sequence": f.sequence}
            for f in self.features
        ]
        return json.dumps({"version": _VERSION, "features": features}, indent=2) + "\n"

    @classmethod
    def loads(cls, text: str, source: str = "the schema") -> Schema:
        """From JSON; `source` names it in errors."""
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                raise DataError(f"{source} has version {found['version']}, this reads {_VERSION}")
            features = tuple(
                Feature(f["name"], Kind(f["kind"]), tuple(f["shape"]), bool(f["sequence"]))
                for f in found["features"]
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{source} is not a schema of records: {error!r}") from None
        return cls(features)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file; call it `schema.json` and put it beside the data to have it used."""
        output = open_output(os.fspath(path))
        try:
            output.file.write(self.dumps().encode())
            output.commit()
        except BaseException:
            output.discard()
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Read it from a file."""
        name = os.fspath(path)
        with open_input(name) as file:
            return cls.loads(file.read().decode("utf-8", "replace"), name)


@dataclass(frozen=True)
class FeatureSummary:
    """What was found of one feature. Values of bytes are measured by their lengths."""

    feature: Feature
    missing: int
    values: int
    shortest: int
    longest: int
    least: float | None
    greatest: float | None


@dataclass(frozen=True)
class Summary:
    """What was found in some files."""

    records: int
    features: tuple[FeatureSummary, ...]

    @property
    def schema(self) -> Schema:
        """The schema that fits all the records that were read."""
        return Schema(tuple(summary.feature for summary in self.features))


def saved_schema(files: list[str]) -> Schema | None:
    """The schema beside the first of the files, if there is one."""
    directory, slash, _ = files[0].rpartition("/")
    try:
        return Schema.load(f"{directory}{slash}{FILE_NAME}")
    except DataError as error:
        if "there is no file" in str(error) or "No such file" in str(error):
            return None
        raise


def infer_schema(paths: Paths, *, most: int | None = None) -> Schema:
    """The schema that fits all records, or the first `most`."""
    return summarize(paths, most=most).schema


def summarize(paths: Paths, *, most: int | None = None) -> Summary:
    """Read all records, or the first `most`, and say what is in them."""
    found: dict[tuple[bytes, bool], _Tally] = {}
    records = 0
    for path in expand(paths):
        left = None if most is None else most - records
        if left == 0:
            break
        for chunk in read_chunks(path, most=left):
            for column in decode_chunk(path, chunk, None):
                key = column.name, column.sequence
                if key not in found:
                    found[key] = _Tally(column.name, column.sequence, records)
                found[key].add(path, chunk, column)
            rows = len(chunk)
            for tally in found.values():
                tally.end_chunk(rows)
            records += rows
            if most is not None and records >= most:
                break
    summaries = [tally.finish() for tally in found.values() if tally.kind]
    return Summary(records, tuple(sorted(summaries, key=lambda summary: summary.feature.name)))


def decode_chunk(path: str, chunk: Chunk, schema: Schema | None) -> list[RawColumn]:
    """Decode a chunk's records; an error says which one it was."""
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


class _Tally:
    """A feature's summary while it is made."""

    def __init__(self, name: bytes, sequence: bool, rows_before: int) -> None:
        self.name, self.sequence = name, sequence
        self.kind = 0
        self.missing = rows_before
        self.values = 0
        self.shortest: int | None = None
        self.longest = 0
        self.narrowest: int | None = None
        self.widest = 0
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
                f"feature {self.name.decode('utf-8', 'replace')!r} holds {_KINDS[column.kind]} "
                f"values, and {_KINDS[self.kind]} values were expected",
            )  # fmt: skip
        self.kind = column.kind
        self._measure(column)

    def _measure(self, column: RawColumn) -> None:
        import numpy as np  # noqa: PLC0415

        self.shortest = _least(self.shortest, column.shortest)
        self.longest = max(self.longest, column.longest)
        if len(memoryview(column.step_offsets)) > 4:
            self.narrowest = _least(self.narrowest, column.narrowest)
            self.widest = max(self.widest, column.widest)
        values: Any
        if column.kind == 1:
            values = np.diff(np.frombuffer(column.value_offsets, np.int32))
        else:
            values = np.frombuffer(column.values, np.float32 if column.kind == 2 else np.int64)
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
        if self.sequence:
            low, high = self.narrowest or 0, self.widest
        else:
            low, high = self.shortest or 0, self.longest
        shape: tuple[int | None, ...] = (None,)
        if low == high and high > 0:
            shape = () if high == 1 else (high,)
        try:
            name = self.name.decode()
        except UnicodeDecodeError:
            raise DataError(f"a feature is called {self.name!r}, which is not UTF-8: "
                            "give a schema without it") from None  # fmt: skip
        feature = Feature(name, _KINDS[self.kind], shape, self.sequence)
        return FeatureSummary(
            *(feature, self.missing, self.values),
            *(self.shortest or 0, self.longest, self.least, self.greatest),
        )


def _least(known: int | None, new: int) -> int:
    return new if known is None else min(known, new)


def _first_present(column: RawColumn) -> int:
    for place, byte in enumerate(memoryview(column.validity).cast("B")):
        if byte:
            return 8 * place + (byte & -byte).bit_length() - 1
    return 0
