"""What is in files of Examples: the names, kinds and shapes of their features.

    summary = summarize("train-*.tfrecord")     # reads everything: exact
    summary.schema.save("schema.json")

A schema's columns come out the same for every batch of every file. One that is saved beside the
data as `schema.json` is used by all readers that are given none.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from phalanx.errors import DataError
from phalanx.records.codec import RAGGED
from phalanx.records.storage import exists, open_input, writing

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
KINDS = {number: kind for kind, number in _NUMBERS.items()}


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
        raise DataError(
            f"there is no feature {name!r}: there are {', '.join(self.names) or 'none'}"
        )

    def select(self, names: list[str]) -> Schema:
        """Only these features; the others are then passed over when reading."""
        return Schema(tuple(self[name] for name in names))

    def codec_columns(self) -> list[tuple[bytes, int, bool, int]]:
        """The schema as the codec takes it."""
        return [(f.name.encode(), f.kind.number, f.sequence, f.width) for f in self.features]

    def to_arrow(self) -> pa.Schema:
        """As a schema of Arrow: the types of the columns that the features are decoded to."""
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
        with writing(os.fspath(path)) as file:
            file.write(self.dumps().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Read it from a file."""
        name = os.fspath(path)
        with open_input(name) as file:
            return cls.loads(file.read().decode("utf-8", "replace"), name)


def saved_schema(files: list[str]) -> Schema | None:
    """The schema beside the first of the files, if there is one."""
    directory, slash, _ = files[0].rpartition("/")
    path = f"{directory}{slash}{FILE_NAME}"
    return Schema.load(path) if exists(path) else None
