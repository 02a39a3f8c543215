"""Functions beside `format("tfrecord")`: all save modes, partition pruning, fast counts, UDFs."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from phalanx.errors import DataError
from phalanx.records.example import decode_examples, encode_examples
from phalanx.records.spark.columns import RecordType, features_of, from_features, to_features
from phalanx.records.spark.dataset import find_dataset
from phalanx.records.spark.options import NAMES, Options
from phalanx.records.spark.output import check_columns, holds_table
from phalanx.records.spark.partitions import (
    check_partition_columns,
    partition_types,
    partition_value,
)
from phalanx.records.storage import resolve

_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"

_Option = str | bool | int | float | None


def save(
    df: DataFrame,
    path: str,
    mode: str = "error",
    partition_by: Sequence[str] | str = (),
    **options: _Option,
) -> None:
    """Write a DataFrame as TFRecord files.

        save(df, "hdfs://host/out", mode="overwrite", partition_by=["day"], codec="gzip")

    Args:
        df: The DataFrame.
        path: The directory to write.
        mode: `error` fails if the path exists, `ignore` then writes nothing, `append` adds files,
            and `overwrite` replaces all files after the new ones are complete, or those of the
            partitions that are written, if the option `partitionOverwriteMode` (by default
            Spark's setting `spark.sql.sources.partitionOverwriteMode`) is `dynamic`.
        partition_by: Columns to store as directories, as in `day=2026-01-31`.
        **options: The options of `format("tfrecord")`.

    Raises:
        DataError: The mode or a column does not exist, or the path does.
    """
    mode = mode.lower()
    if mode not in ("error", "errorifexists", "ignore", "append", "overwrite"):
        raise DataError(f"the mode is {mode!r}: it can be error, ignore, append or overwrite")
    columns = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    check_partition_columns(columns, df.columns)
    if _has_jar(df.sparkSession):
        # Spark deletes the files that it overwrites before it asks the format.
        _check_before_write(df, columns, options)
        writer = df.write.format("tfrecord").mode(mode).options(**options)
        with _removing_empty_directory(df.sparkSession, path):
            (writer.partitionBy(*columns) if columns else writer).save(path)
        return
    target = resolve(path)
    if mode not in ("append", "overwrite") and holds_table(target):
        if mode == "ignore":
            return
        raise DataError(f"{path} already exists: choose another path, or the mode append, "
                        "overwrite or ignore")  # fmt: skip
    if columns:
        # Spark's own text for each value becomes the name of a directory.
        df = df.withColumns({name: f.col(f"`{name}`").cast("string") for name in columns})
        # A task has one file open at a time.
        df = df.sortWithinPartitions(*(f"`{name}`" for name in columns))
        options["partitionBy"] = json.dumps(columns)
        options.setdefault("partitionOverwriteMode", df.sparkSession.conf.get(_OVERWRITE_MODE))
    writer = df.write.format("tfrecord").mode("overwrite" if mode == "overwrite" else "append")
    writer.options(**options).save(target)


def _has_jar(spark: SparkSession) -> bool:
    """Whether `format("tfrecord")` is that of the jar, which Spark prefers to the one in Python."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:  # Spark Connect has no JVM on this side
        return False
    sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
    found = sources.lookupDataSource("tfrecord", spark._jsparkSession.sessionState().conf())
    return str(found.getName()).startswith("phalanx.")


@contextlib.contextmanager
def _removing_empty_directory(spark: SparkSession, path: str) -> Iterator[None]:
    """Remove the directory of a write that failed, if the write made it and nothing is in it.

    Spark leaves it, and would take it for a table when the write is repeated.
    """
    jvm = spark._jvm
    assert jvm is not None, "the jar is used without a JVM"
    directory = jvm.org.apache.hadoop.fs.Path(path)
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    filesystem = directory.getFileSystem(hadoop)
    was_there = filesystem.exists(directory)
    try:
        yield
    except BaseException:
        if not was_there and filesystem.exists(directory) and not filesystem.listStatus(directory):
            filesystem.delete(directory, False)
        raise


def _check_before_write(
    df: DataFrame, partition_by: list[str], options: Mapping[str, object]
) -> None:
    known = {name.lower() for name in NAMES}
    ours = {name: str(each) for name, each in options.items() if name.lower() in known}
    parsed = replace(Options.parse(ours), partition_by=tuple(partition_by))
    check_columns(to_arrow_schema(df.schema, timezone="UTC"), parsed)


def load(
    spark: SparkSession,
    path: str,
    where: str | None = None,
    schema: StructType | str | None = None,
    **options: _Option,
) -> DataFrame:
    """Read a directory, or only some of its partitions.

        load(spark, "hdfs://host/out", where="day >= '2026-01-01' AND country IN ('DE', 'FR')")

    Args:
        spark: The session.
        path: The directory.
        where: A SQL condition on the partition columns. Files of other partitions are not opened,
            whereas `df.where(...)` reads all files.
        schema: The columns to read; inferred from the files by default.
        **options: The options of `format("tfrecord")`.

    Returns:
        The DataFrame.

    Raises:
        DataError: `where` is not a condition on the partition columns.
    """
    reader = spark.read.format("tfrecord").options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    if where is None:
        return reader.load(path)
    if _has_jar(spark):
        return reader.load(path).where(where)  # Spark prunes the partitions itself
    root = resolve(path)
    directories = _choose_directories(spark, root, where)
    if not directories:
        return reader.load(root).where("false")
    return reader.option("basePath", root).load(directories)


def _choose_directories(spark: SparkSession, root: str, where: str) -> list[str]:
    """Let Spark evaluate the condition for each partition directory."""
    values = {file.path.rpartition("/")[0]: each for file, each in find_dataset(Options((root,)))}
    types = partition_types(values.values())
    rows = [
        (path, *(partition_value(name, each[name], type_).as_py() for name, type_ in types.items()))
        for path, each in values.items()
    ]
    # No partition column can contain a slash.
    columns = from_arrow_schema(pa.schema([("a/path", pa.string()), *types.items()]))
    try:
        chosen = spark.createDataFrame(rows, columns).where(where).collect()
    except AnalysisException as error:
        raise DataError(f"where is {where!r}, and the partition columns of {root} are "
                        f"{', '.join(types) or 'none'}: {error}") from None  # fmt: skip
    return [row[0] for row in chosen]


def count(spark: SparkSession, paths: str | Sequence[str], **options: _Option) -> int:
    """Count records without decoding them.

        count(spark, "data/*.tfrecord")

    Args:
        spark: The session.
        paths: Files, globs or directories.
        **options: The options of `format("tfrecord")`.

    Returns:
        The number of records; `df.count()` returns the same but decodes all columns.
    """
    reader = spark.read.format("tfrecord").schema(StructType([])).options(**options)
    return int(reader.load(paths).count())


def to_example(*columns: Column | str, record_type: str = "Example") -> Column:
    """Serialize columns to a column of Examples.

        df.select(to_example("label", "pixels").alias("example"))

    Args:
        *columns: The columns to store as features; nulls are not stored.
        record_type: `Example`, or `SequenceExample` to store arrays of arrays as feature lists.

    Returns:
        A binary column.
    """
    if not columns:
        raise DataError('name the columns to put into the example, as in to_example("label")')
    kind = _parse_record_type(record_type)

    def encode(rows: pa.Array) -> pa.Array:
        fields = [pa.field(field.name, field.type) for field in rows.type]
        features_of(pa.schema(fields), kind)
        batch = to_features(pa.RecordBatch.from_struct_array(rows))
        return pa.array(encode_examples(batch), pa.binary())

    return f.arrow_udf(encode, "binary")(f.struct(*columns))


def from_example(
    column: Column | str, schema: StructType | str, record_type: str = "Example"
) -> Column:
    """Parse a column of serialized Examples to a column of structs.

        df.select(from_example("example", "label long, pixels array<float>").alias("row"))
        .select("row.*")

    Args:
        column: The binary column; nulls stay null.
        schema: The features to decode; those that an Example lacks are null.
        record_type: `Example` or `SequenceExample`.

    Returns:
        A column of structs with the fields of `schema`.
    """
    kind = _parse_record_type(record_type)
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    columns = to_arrow_schema(schema, timezone="UTC")
    features = features_of(columns, kind)

    def decode(messages: pa.Array) -> pa.Array:
        if not (pa.types.is_binary(messages.type) or pa.types.is_large_binary(messages.type)):
            raise DataError(
                f"from_example got a column of {messages.type}: serialized Examples are binary"
            )
        texts = [message or b"" for message in messages.to_pylist()]
        batch = from_features(decode_examples(texts, features), columns)
        return pa.StructArray.from_arrays(
            batch.columns, fields=list(columns), mask=messages.is_null()
        )

    return f.arrow_udf(decode, schema)(column)


def _parse_record_type(name: str) -> RecordType:
    for kind in (RecordType.EXAMPLE, RecordType.SEQUENCE_EXAMPLE):
        if kind.value.lower() == name.lower():
            return kind
    raise DataError(f"the record type is {name!r}: it can be Example or SequenceExample")
