"""Schemas: the names, kinds and shapes of the features of Examples."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from phalanx.errors import DataError
from phalanx.records.codec import RAGGED
from phalanx.records.storage import exists, open_input, write_bytes
from phalanx.records.storage.listing import SCHEMA_FILE

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 1


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
        name: The name.
        kind: The kind of its values.
        shape: `()` for a single value, `(3,)` for three, `(None,)` for any number.
        sequence: Whether it is a feature list of a SequenceExample: any number of steps, each of
            this shape.
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
        if self.sequence:
            return RAGGED
        if not self.shape:
            return 1
        return RAGGED if self.shape[0] is None else self.shape[0]

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
        names = [feature.name for feature in self.features]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"the schema names these features twice: {', '.join(twice)}")

    @property
    def is_sequence(self) -> bool:
        """Are the records SequenceExamples?"""
        return any(feature.sequence for feature in self.features)

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [feature.name for feature in self.features]

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise DataError(
            f"there is no feature {name!r}: there are {', '.join(self.names) or 'none'}"
        )

    def select(self, names: list[str]) -> Schema:
        """The schema of only these features; readers do not decode the others."""
        return Schema(tuple(self[name] for name in names))

    def codec_columns(self) -> list[tuple[bytes, int, bool, int]]:
        """The columns for `Codec.decode`."""
        return [(f.name.encode(), f.kind.number, f.sequence, f.width) for f in self.features]

    def to_arrow(self) -> pa.Schema:
        """The Arrow schema of the columns that the features are decoded to."""
        from phalanx.records.arrow import to_arrow_schema  # noqa: PLC0415

        return to_arrow_schema(self)

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """The schema of the features that Arrow columns of these types are encoded to."""
        from phalanx.records.arrow import from_arrow_schema  # noqa: PLC0415

        return from_arrow_schema(schema)

    def dumps(self) -> str:
        """Serialize the schema to JSON."""
        features = [
            {"name": f.name, "kind": f.kind.value, "shape": list(f.shape), "sequence": f.sequence}
            for f in self.features
        ]
        return json.dumps({"version": _VERSION, "features": features}, indent=2) + "\n"

    @classmethod
    def loads(cls, text: str, source: str = "the schema") -> Schema:
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
            found = json.loads(text)
            if found["version"] != _VERSION:
                raise DataError(f"{source} has version {found['version']}, not {_VERSION}")
            features = tuple(
                Feature(f["name"], Kind(f["kind"]), tuple(f["shape"]), bool(f["sequence"]))
                for f in found["features"]
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{source} is not a schema of records: {error!r}") from None
        return cls(features)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the schema to a file."""
        write_bytes(os.fspath(path), self.dumps().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Load a schema from a file."""
        name = os.fspath(path)
        with open_input(name) as file:
            return cls.loads(file.read().decode("utf-8", "replace"), name)


def saved_schema(files: list[str]) -> Schema | None:
    """The schema saved beside the first of the files, if there is one."""
    directory, slash, _ = files[0].rpartition("/")
    path = f"{directory}{slash}{SCHEMA_FILE}"
    return Schema.load(path) if exists(path) else None
