"""TFRecord files without TensorFlow: read, write, verify, repair and convert.

from phalanx import records

for record in records.read_records("train-*.tfrecord"):     # bytes
    ...
table = records.read_table("train-*.tfrecord")              # an Arrow table of Examples
records.write_examples("out.tfrecord", table)
"""

from __future__ import annotations

from phalanx.records.compression import Compression
from phalanx.records.example import (
    decode_examples,
    encode_batch,
    encode_examples,
    read_arrays,
    read_batches,
    read_rows,
    read_table,
    write_examples,
)
from phalanx.records.file_operations import Report, repair, verify, verify_all
from phalanx.records.framing import Chunk, Damage, count_records, read_chunks, read_records
from phalanx.records.index import RecordIndex, open_index
from phalanx.records.schema import Feature, Kind, Schema
from phalanx.records.storage.listing import expand
from phalanx.records.summary import FeatureSummary, Summary, infer_schema, summarize
from phalanx.records.writer import RecordWriter, ShardedWriter, shard_path

__all__ = [
    "Chunk",
    "Compression",
    "Damage",
    "Feature",
    "FeatureSummary",
    "Kind",
    "RecordIndex",
    "RecordWriter",
    "Report",
    "Schema",
    "ShardedWriter",
    "Summary",
    "count_records",
    "decode_examples",
    "encode_batch",
    "encode_examples",
    "expand",
    "infer_schema",
    "open_index",
    "read_arrays",
    "read_batches",
    "read_chunks",
    "read_records",
    "read_rows",
    "read_table",
    "repair",
    "shard_path",
    "summarize",
    "verify",
    "verify_all",
    "write_examples",
]
