"""The options of `format("tfrecord")`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from phalanx.errors import DataError
from phalanx.records.compression import Compression
from phalanx.records.spark.columns import RecordType
from phalanx.records.storage import resolve

_HADOOP = "org.apache.hadoop.io.compress."
_CODECS = {
    "": Compression.NONE,
    "none": Compression.NONE,
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    f"{_HADOOP}GzipCodec": Compression.GZIP,
    "deflate": Compression.ZLIB,
    "zlib": Compression.ZLIB,
    f"{_HADOOP}DefaultCodec": Compression.ZLIB,
    f"{_HADOOP}DeflateCodec": Compression.ZLIB,
}
_SUFFIXES = {Compression.NONE: "", Compression.GZIP: ".gz", Compression.ZLIB: ".deflate"}

NAMES = (
    "recordType",
    "codec",
    "binaryColumns",
    "columns",
    "basePath",
    "maxPartitionBytes",
    "inferRecords",
    "writeLocality",
    "maxFilesPerTrigger",
    "maxFileAge",
)
"""The options that a user may set. `save` sets `partitionBy`; Spark sets the others."""

_OTHERS = ("path", "paths", "partitionBy", "checkpointLocation", "queryName", "batchId")
_KNOWN = {name.lower() for name in (*NAMES, *_OTHERS)}


class WriteLocality(StrEnum):
    """Where files are written: to a shared directory, or to the local disk of each executor."""

    DISTRIBUTED = "distributed"
    LOCAL = "local"


@dataclass(frozen=True)
class Options:
    """The options of a read or a write."""

    paths: tuple[str, ...] = ()
    record_type: RecordType = RecordType.EXAMPLE
    compression: Compression = Compression.NONE
    binary_columns: frozenset[str] = frozenset()
    columns: tuple[str, ...] | None = None
    base_path: str | None = None
    max_partition_bytes: int = 128 << 20
    infer_records: int | None = None
    write_locality: WriteLocality = WriteLocality.DISTRIBUTED
    partition_by: tuple[str, ...] = ()
    max_files_per_trigger: int | None = None
    max_file_age: int = 7 * 24 * 3600

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Parse and check Spark's options, whose names are not case-sensitive."""
        options = {name.lower(): text for name, text in given.items()}
        unknown = sorted(set(options) - _KNOWN)
        if unknown:
            raise DataError(
                f"format('tfrecord') has no option {', '.join(unknown)}: there are "
                f"{', '.join(NAMES)}"
            )
        base = options.get("basepath")
        return cls(
            paths=_paths(options),
            record_type=_choose("recordType", options, RecordType, RecordType.EXAMPLE),
            compression=_compression(options.get("codec", "")),
            binary_columns=frozenset(_split(options.get("binarycolumns")) or ()),
            columns=_split(options.get("columns")),
            base_path=resolve(base) if base else None,
            max_partition_bytes=_number(
                "maxPartitionBytes", options, 128 << 20, _SIZES, "such as 64m"
            ),
            infer_records=_number("inferRecords", options, None, _COUNTS, "1 or more"),
            write_locality=_choose(
                "writeLocality", options, WriteLocality, WriteLocality.DISTRIBUTED
            ),
            partition_by=tuple(json.loads(options.get("partitionby", "[]"))),
            max_files_per_trigger=_number(
                "maxFilesPerTrigger", options, None, _COUNTS, "1 or more"
            ),
            max_file_age=_number("maxFileAge", options, 7 * 24 * 3600, _TIMES, "such as 12h"),
        )

    @property
    def path(self) -> str:
        """The one directory to write to."""
        if len(self.paths) != 1:
            raise DataError(f"give one directory to write to, as in save('out'); found "
                            f"{', '.join(self.paths) or 'none'}")  # fmt: skip
        return self.paths[0]

    @property
    def suffix(self) -> str:
        """The suffix of the files written."""
        return ".tfrecord" + _SUFFIXES[self.compression]


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    paths = json.loads(options.get("paths", "[]"))
    if "path" in options:
        paths = [options["path"], *paths]
    return tuple(map(resolve, paths))


def _compression(name: str) -> Compression:
    for known, compression in _CODECS.items():
        if known.lower() == name.lower():
            return compression
    raise DataError(f"TensorFlow cannot read the codec {name}: use gzip or deflate")


Choice = TypeVar("Choice", bound=StrEnum)
Number = TypeVar("Number", int, None)


def _choose(name: str, options: Mapping[str, str], kind: type[Choice], default: Choice) -> Choice:
    text = options.get(name.lower(), default.value)
    for choice in kind:
        if choice.value.lower() == text.lower():
            return choice
    raise DataError(f"the option {name} is {text!r}: it can be {', '.join(kind)}")


def _split(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name for name in (each.strip() for each in text.split(",")) if name)


_COUNTS: Mapping[str, int] = {}
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


def _number(
    name: str, options: Mapping[str, str], default: Number, units: Mapping[str, int], example: str
) -> int | Number:
    text = options.get(name.lower())
    if text is None:
        return default
    if units is _SIZES:
        text = text.lower().removesuffix("b")
    unit = units.get(text[-1:].lower())
    digits = text[:-1] if unit else text
    if not digits.isdecimal() or int(digits) < 1:
        raise DataError(f"the option {name} is {text!r}: it must be a number, {example}")
    return int(digits) * (unit or 1)
