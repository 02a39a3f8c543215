"""From files to batches: input pipelines that can be taken up again exactly."""

from __future__ import annotations

from phalanx.data.pipeline import Pipeline
from phalanx.data.sharding import Share, share_of
from phalanx.data.sources import (
    ArraySource,
    BinarySource,
    ParquetSource,
    RecordSource,
    Source,
    TableSource,
)

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
