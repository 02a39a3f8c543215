"""Input pipelines, from files to batches, that can be resumed at any position."""

from __future__ import annotations

from phalanx.data.pipeline import Pipeline
from phalanx.data.record_source import RecordSource
from phalanx.data.sharding import Share, share_of
from phalanx.data.sources import ArraySource, BinarySource, Source
from phalanx.data.table_source import ParquetSource, TableSource

__all__ = [
    "ArraySource",
    "BinarySource",
    "ParquetSource",
    "Pipeline",
    "RecordSource",
    "Share",
    "Source",
    "TableSource",
    "share_of",
]
