"""Input pipelines, from files to batches, that can be resumed at any position."""

from phalanx.data.order import Share, share_of
from phalanx.data.pipeline import Pipeline
from phalanx.data.record_source import RecordSource
from phalanx.data.sources import ArraySource, BinarySource, ParquetSource, Source, TableSource

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
