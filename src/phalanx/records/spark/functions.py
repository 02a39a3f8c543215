"""Columns to messages and back: for models that take, or give, serialized Examples."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from phalanx.errors import DataError
from phalanx.records.example import decode_examples, encode_examples
from phalanx.records.spark.columns import RecordType, features_of, from_features, to_features


def to_example(*columns: Column | str, record_type: str = "Example") -> Column:
    """A column of serialized Examples, each of the row's values in these columns.

    df.select(to_example("label", "pixels").alias("example"))

    Nulls are left out. With `record_type="SequenceExample"` arrays of arrays become feature lists.
    """
    if not columns:
        raise DataError('name the columns to put into the example, as in to_example("label")')
    kind = _record_type(record_type)

    def encode(rows: pa.Array) -> pa.Array:
        fields = [pa.field(field.name, field.type) for field in rows.type]
        features_of(pa.schema(fields), kind)
        batch = to_features(pa.RecordBatch.from_struct_array(rows))
        return pa.array(encode_examples(batch), pa.binary())

    return f.arrow_udf(encode, "binary")(f.struct(*columns))


def from_example(
    column: Column | str, schema: StructType | str, record_type: str = "Example"
) -> Column:
    """A column of structs, with what serialized Examples hold.

        df.select(from_example("example", "label long, pixels array<float>").alias("row"))
        .select("row.*")

    Only the features that the schema names are decoded; one that an Example lacks is null, and a
    null stays one.
    """
    kind = _record_type(record_type)
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    columns = to_arrow_schema(schema, timezone="UTC")
    features = features_of(columns, kind)

    def decode(messages: pa.Array) -> pa.Array:
        texts = [message or b"" for message in messages.to_pylist()]
        batch = from_features(decode_examples(texts, features), columns)
        return pa.StructArray.from_arrays(
            batch.columns, fields=list(columns), mask=messages.is_null()
        )

    return f.arrow_udf(decode, schema)(column)


def _record_type(name: str) -> RecordType:
    for kind in (RecordType.EXAMPLE, RecordType.SEQUENCE_EXAMPLE):
        if kind.value.lower() == name.lower():
            return kind
    raise DataError(f"the record type is {name!r}: it can be Example or SequenceExample")
