"""`spark.read.format("tfrecord")` and `df.write.format("tfrecord")`.

What Spark asks of a data source in Python, and no more: the work is in the modules beside this.
"""

from __future__ import annotations

import uuid

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from phalanx.records.spark.dataset import find_dataset, infer_dataset
from phalanx.records.spark.options import Options
from phalanx.records.spark.reader import TFRecordReader
from phalanx.records.spark.stream import TFRecordStreamReader, TFRecordStreamWriter
from phalanx.records.spark.task import check_columns
from phalanx.records.spark.worker import settle
from phalanx.records.spark.writer import make_writer


class TFRecordSource(DataSource):
    """TFRecord files as a table."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "tfrecord"

    def schema(self) -> StructType:
        """The columns, found in the files."""
        options = Options.parse(self.options)
        return from_arrow_schema(infer_dataset(options, find_dataset(options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        settle()
        return TFRecordReader(Options.parse(self.options), _to_arrow(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `df.write`."""
        settle()
        options = Options.parse(self.options)
        check_columns(_to_arrow(schema), options)
        return make_writer(options, str(uuid.uuid4()), overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For `spark.readStream`."""
        return TFRecordStreamReader(Options.parse(self.options), _to_arrow(schema))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """For `df.writeStream`."""
        options = Options.parse(self.options)
        check_columns(_to_arrow(schema), options)
        return TFRecordStreamWriter(options)


class TFRecordsSource(TFRecordSource):
    """The same under its old name."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "tfrecords"


def _to_arrow(schema: StructType) -> pa.Schema:
    """As Spark itself does it: it compares the types exactly."""
    return to_arrow_schema(schema, timezone="UTC")
