"""The options of `format("tfrecord")`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

from phalanx.errors import DataError
from phalanx.records.compression import Compression
from phalanx.records.spark.columns import RecordType
from phalanx.records.storage import resolve

_HADOOP = "org.apache.hadoop.io.compress."
_CODECS = {
    Compression.NONE: ("", "none", "uncompressed"),
    Compression.GZIP: ("gzip", f"{_HADOOP}gzipcodec"),
    Compression.ZLIB: ("deflate", "zlib", f"{_HADOOP}defaultcodec", f"{_HADOOP}deflatecodec"),
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
    "partitionOverwriteMode",
    "maxFilesPerTrigger",
    "maxFileAge",
)
"""The options that a user may set. `save` sets `partitionBy`; Spark sets the others."""

_OTHERS = ("path", "paths", "partitionBy", "checkpointLocation", "queryName", "batchId")
_KNOWN = {name.lower() for name in (*NAMES, *_OTHERS)}


_INSTEAD = {
    "pathglobfilter": "give a glob to load, as in load('data/*.tfrecord')",
    "recursivefilelookup": "load reads all directories below its path",
    "modifiedafter": "choose the files, and give their paths to load",
    "modifiedbefore": "choose the files, and give their paths to load",
    "mergeschema": "the schema is that of all files",
    "compression": "the option is called codec",
    "location": "tables of the catalog need the jar: load the files, and make a temporary view",
}


class WriteLocality(StrEnum):
    """Where files are written: to a shared directory, or to the local disk of each executor."""

    DISTRIBUTED = "distributed"
    LOCAL = "local"


class PartitionOverwriteMode(StrEnum):
    """What `overwrite` replaces: all files, or those of the partitions that are written."""

    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Options:
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
    partition_overwrite_mode: PartitionOverwriteMode = PartitionOverwriteMode.STATIC
    max_files_per_trigger: int | None = None
    max_file_age: int = 7 * 24 * 3600

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse and check Spark's options, whose names are not case-sensitive."""
        options = {name.lower(): text for name, text in given.items()}
        unknown = sorted(set(options) - _KNOWN)
        for name in unknown:
            hint = _INSTEAD.get(name, f"there are {', '.join(NAMES)}")
            raise DataError(f"format('tfrecord') has no option {name}: {hint}")
        base = options.get("basepath")
        return cls(
            paths=_paths(options),
            record_type=_choose("recordType", options, cls.record_type),
            compression=_compression(options.get("codec", "")),
            binary_columns=frozenset(_split(options.get("binarycolumns")) or ()),
            columns=_split(options.get("columns")),
            base_path=resolve(base) if base else None,
            max_partition_bytes=_number("maxPartitionBytes", options, "such as 64m", **_SIZES)
            or cls.max_partition_bytes,
            infer_records=_number("inferRecords", options),
            write_locality=_choose("writeLocality", options, cls.write_locality),
            partition_by=tuple(json.loads(options.get("partitionby", "[]"))),
            partition_overwrite_mode=_choose(
                "partitionOverwriteMode", options, cls.partition_overwrite_mode
            ),
            max_files_per_trigger=_number("maxFilesPerTrigger", options),
            max_file_age=_number("maxFileAge", options, "such as 12h", **_TIMES)
            or cls.max_file_age,
        )

    @property
    def path(self) -> str:
        """The one directory to write to."""
        if len(self.paths) != 1:
            raise DataError(f"give one directory to write to, as in save('out'); found "
                            f"{', '.join(self.paths) or 'none: tables of the catalog need the jar'}"
            )  # fmt: skip
        return self.paths[0]

    @property
    def suffix(self) -> str:
        return ".tfrecord" + _SUFFIXES[self.compression]


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    paths = json.loads(options.get("paths", "[]"))
    if "path" in options:
        paths = [options["path"], *paths]
    return tuple(map(resolve, paths))


def _compression(name: str) -> Compression:
    for compression, names in _CODECS.items():
        if name.lower() in names:
            return compression
    raise DataError(f"TensorFlow cannot read the codec {name}: use gzip or deflate")


Choice = TypeVar("Choice", bound=StrEnum)


def _choose(name: str, options: Mapping[str, str], default: Choice) -> Choice:
    text = options.get(name.lower(), default.value)
    for choice in type(default):
        if choice.value.lower() == text.lower():
            return choice
    raise DataError(f"the option {name} is {text!r}: it can be {', '.join(type(default))}")


def _split(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name for name in (each.strip() for each in text.split(",")) if name)


_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


def _number(
    name: str, options: Mapping[str, str], example: str = "1 or more", **units: int
) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if "g" in units:
        text = text.lower().removesuffix("b")
    unit = units.get(text[-1:].lower())
    digits = text[:-1] if unit else text
    if not digits.isdecimal() or int(digits) < 1:
        raise DataError(f"the option {name} is {text!r}: it must be a number, {example}")
    return int(digits) * (unit or 1)
