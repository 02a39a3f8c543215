"""Directories of TFRecord files as one table: which files, which columns, which batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from phalanx.errors import DataError
from phalanx.records.arrow import empty_rows, to_batch
from phalanx.records.directory import FoundFile, find_files
from phalanx.records.framing import Chunk, read_chunks
from phalanx.records.schema import Schema
from phalanx.records.spark.columns import (
    BYTE_ARRAY,
    RecordType,
    features_of,
    from_features,
    infer_columns,
)
from phalanx.records.spark.options import Options
from phalanx.records.spark.partitions import (
    Values,
    partition_types,
    partition_value,
    partition_values,
)
from phalanx.records.spark.splits import Split
from phalanx.records.summary import decode_chunk, find_schema

Files = list[tuple[FoundFile, Values]]


def find_dataset(options: Options) -> Files:
    """The files, and the values in the names of their directories."""
    if not options.paths:
        raise DataError("give the files to read, as in load('data/*.tfrecord')")
    return [(file, partition_values(_inside(file, options))) for file in find_files(options.paths)]


def _inside(file: FoundFile, options: Options) -> str:
    if options.base_path is None:
        return file.inside
    if not file.path.startswith(f"{options.base_path}/"):
        raise DataError(f"{file.path} is not in the basePath {options.base_path}")
    return file.path.removeprefix(options.base_path).strip("/").rpartition("/")[0]


def infer_dataset(options: Options, files: Files) -> pa.Schema:
    """The columns of the files and, after them, those of their directories."""
    partitions = partition_types(values for _, values in files)
    if options.record_type is RecordType.BYTE_ARRAY:
        inferred = pa.schema([pa.field(BYTE_ARRAY, pa.binary())])
    else:
        features = _infer_features(options, [file.path for file, _ in files])
        inferred = infer_columns(features, options.binary_columns)
    fields = [field for field in inferred if field.name not in partitions]
    fields += [pa.field(name, type_) for name, type_ in partitions.items()]
    if options.columns is not None:
        by_name = {field.name: field for field in fields}
        missing = [name for name in options.columns if name not in by_name]
        if missing:
            raise DataError(
                f"there is no column {', '.join(missing)}: there are {', '.join(by_name)}"
            )
        fields = [by_name[name] for name in options.columns]
    return pa.schema(fields)


def _infer_features(options: Options, paths: Sequence[str]) -> Schema:
    where = ", ".join(options.paths)
    if not paths:
        raise DataError(f"there are no files in {where} to see the columns from: give a schema")
    schema = find_schema(list(paths), most=options.infer_records)
    if not schema.features:
        raise DataError(f"there are no features in {where} to see the columns from: give a schema")
    if schema.is_sequence and options.record_type is RecordType.EXAMPLE:
        raise DataError(
            f"{where} holds SequenceExamples: set the option recordType to SequenceExample"
        )
    return schema


def read_split(
    split: Split, columns: pa.Schema, record_type: RecordType
) -> Iterator[pa.RecordBatch]:
    """The records of a split as batches of exactly these columns."""
    stored = pa.schema([field for field in columns if field.name not in split.values])
    schema = None if record_type is RecordType.BYTE_ARRAY else features_of(stored, record_type)
    for chunk in read_chunks(split.path, part=split.part):
        try:
            batch = _decode(split.path, chunk, schema, stored)
            yield _add_constants(batch, split.values, columns) if split.values else batch
        except DataError as error:
            raise DataError(f"{split.path}: {error}") from None


def _decode(path: str, chunk: Chunk, schema: Schema | None, stored: pa.Schema) -> pa.RecordBatch:
    if not stored.names:
        return empty_rows(len(chunk))
    if schema is None:
        array = pa.array(list(chunk), stored.field(0).type)
        return pa.RecordBatch.from_arrays([array], schema=stored)
    decoded = to_batch(decode_chunk(path, chunk, schema), len(chunk), schema)
    return from_features(decoded, stored)


def _add_constants(batch: pa.RecordBatch, values: Values, columns: pa.Schema) -> pa.RecordBatch:
    """The columns that the names of directories give, put where they belong."""
    arrays = [
        pa.repeat(partition_value(field.name, values[field.name], field.type), batch.num_rows)
        if field.name in values
        else batch.column(field.name)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns) if arrays else batch
