"""The Spark data source: `spark.read.format("tfrecord")` and `df.write.format("tfrecord")`."""

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

from phalanx.records.spark.batch import TFRecordReader, freeze_loaded_objects, make_writer
from phalanx.records.spark.dataset import find_dataset, infer_dataset
from phalanx.records.spark.options import Options
from phalanx.records.spark.output import check_columns
from phalanx.records.spark.stream import TFRecordStreamReader, TFRecordStreamWriter


class TFRecordSource(DataSource):
    """TFRecord files as a table."""

    @classmethod
    def name(cls) -> str:
        return "tfrecord"

    def schema(self) -> StructType:
        options = Options.parse(self.options)
        return from_arrow_schema(infer_dataset(options, find_dataset(options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        freeze_loaded_objects()
        return TFRecordReader(Options.parse(self.options), _to_arrow(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        freeze_loaded_objects()
        options = Options.parse(self.options)
        check_columns(_to_arrow(schema), options)
        return make_writer(options, str(uuid.uuid4()), overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TFRecordStreamReader(Options.parse(self.options), _to_arrow(schema))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        options = Options.parse(self.options)
        check_columns(_to_arrow(schema), options)
        return TFRecordStreamWriter(options)


class TFRecordsSource(TFRecordSource):
    """The same data source under its old name."""

    @classmethod
    def name(cls) -> str:
        return "tfrecords"


def _to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark itself uses; it compares them exactly."""
    return to_arrow_schema(schema, timezone="UTC")
