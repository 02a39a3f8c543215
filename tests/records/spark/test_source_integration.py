"""`format("tfrecord")` in a real Spark, compared with TensorFlow and protobuf."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from phalanx import records
from phalanx.records.codec.fallback import frame, message_classes

SCALARS: dict[str, tuple[str, list[Any]]] = {
    "byte": ("tinyint", [1, None]),
    "short": ("smallint", [2, -3]),
    "integer": ("int", [-(2**31), 5]),
    "long": ("bigint", [2**62, 7]),
    "float": ("float", [0.5, None]),
    "double": ("double", [-0.25, 8.0]),
    "decimal": ("decimal(10,2)", [Decimal("1.50"), Decimal("-2.25")]),
    "string": ("string", ["Zürich", ""]),
    "binary": ("binary", [bytearray(b"\xff\x00"), bytearray(b"")]),
    "boolean": ("boolean", [True, False]),
}


def columns(depth: int) -> tuple[str, list[tuple[Any, ...]]]:
    """A schema with every type, in arrays of this depth, and two rows."""
    fields, values = [], []
    for name, (type_, pair) in SCALARS.items():
        fields.append(f"{name} {'array<' * depth}{type_}{'>' * depth}")
        deep: list[Any] = list(pair)
        if depth:
            some = [value for value in pair if value is not None]
            deep = [some, []] if depth == 1 else [[some, [], some[:1]], None]
        values.append(deep)
    return ", ".join(fields), list(zip(*values, strict=True))


def written(path: Path) -> list[str]:
    return sorted(str(file) for file in path.rglob("part-*"))


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("codec", ["", "gzip"])
def test_every_type_round_trips(spark: Any, tmp_path: Path, depth: int, codec: str) -> None:
    ddl, rows = columns(depth)
    options = {"codec": codec, "recordType": "SequenceExample" if depth == 2 else "Example"}
    df = spark.createDataFrame(rows, ddl)
    df.write.format("tfrecord").options(**options).mode("append").save(str(tmp_path / "out"))
    back = spark.read.format("tfrecord").options(**options).schema(ddl).load(str(tmp_path / "out"))
    assert back.schema == df.schema
    assert sorted(map(repr, back.collect())) == sorted(map(repr, df.collect()))


def test_vectors_round_trip(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(1, Vectors.dense([1.0, 2.0])), (2, Vectors.sparse(3, {1: 5.0})), (3, None)]
    df = spark.createDataFrame(rows, spark.createDataFrame(rows[:1], ["id", "v"]).schema)
    df.write.format("tfrecord").mode("append").save(str(tmp_path / "out"))
    back = spark.read.format("tfrecord").schema(df.schema).load(str(tmp_path / "out"))
    assert [tuple(row) for row in back.orderBy("id").collect()] == [
        (1, Vectors.dense([1.0, 2.0])),
        (2, Vectors.dense([0.0, 5.0, 0.0])),
        (3, None),
    ]


def test_schema_is_inferred_from_list_lengths(spark: Any, tmp_path: Path) -> None:
    records.write_examples(
        tmp_path / "a.tfrecord",
        [{"i": 1, "f": 0.5, "s": "x", "l": [1]}, {"i": 2, "f": 1.5, "s": "y", "l": [1, 2]}],
    )
    load = spark.read.format("tfrecord")
    fields = {
        field.name: field.dataType.simpleString() for field in load.load(str(tmp_path)).schema
    }
    assert fields == {"i": "bigint", "f": "float", "s": "string", "l": "array<bigint>"}
    binary = load.option("binaryColumns", "s").load(str(tmp_path))
    assert binary.schema["s"].dataType.simpleString() == "binary"
    records.write_examples(tmp_path / "q" / "a", [{"q": [["x"], []], "c": [1, 2]}])
    sequence = load.option("recordType", "SequenceExample").load(str(tmp_path / "q"))
    assert dict(sequence.dtypes) == {"c": "array<bigint>", "q": "array<array<string>>"}


def test_tensorflow_reads_files_written_by_spark(spark: Any, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    df = spark.createDataFrame([(3, 0.5, "x", [1, 2])], "b int, a double, d string, c array<long>")
    df.write.format("tfrecord").mode("append").option("codec", "gzip").save(str(tmp_path / "out"))
    (message,) = tf.data.TFRecordDataset(written(tmp_path / "out"), "GZIP").as_numpy_iterator()
    example = tf.train.Example()
    example.features.feature["a"].float_list.value.append(0.5)
    example.features.feature["b"].int64_list.value.append(3)
    example.features.feature["c"].int64_list.value.extend([1, 2])
    example.features.feature["d"].bytes_list.value.append(b"x")
    assert message == example.SerializeToString(deterministic=True)


def test_spark_reads_files_written_by_tensorflow_and_protobuf(spark: Any, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    def fill(example: Any, name: str) -> bytes:
        example.context.feature["name"].bytes_list.value.append(name.encode())
        for step in ([1, 2], []):
            feature = example.feature_lists.feature_list["steps"].feature.add()
            feature.int64_list.value.extend(step)
        return bytes(example.SerializeToString())

    for name, codec in (("a", ""), ("b", "GZIP"), ("c", "ZLIB")):
        with tf.io.TFRecordWriter(str(tmp_path / name), tf.io.TFRecordOptions(codec)) as writer:
            writer.write(fill(tf.train.SequenceExample(), name))
    _, plain = message_classes()
    (tmp_path / "d").write_bytes(frame([fill(plain(), "d")]))
    df = spark.read.format("tfrecords").option("recordType", "SequenceExample").load(str(tmp_path))
    assert [tuple(row) for row in df.orderBy("name").collect()] == [
        (name, [[1, 2], []]) for name in "abcd"
    ]


def test_byte_array_records_are_not_decoded(spark: Any, tmp_path: Path) -> None:
    df = spark.createDataFrame([(bytearray(b"one"),), (bytearray(b""),)], "byteArray binary")
    write = df.coalesce(1).write.format("tfrecord").option("recordType", "ByteArray")
    write.mode("append").save(str(tmp_path / "out"))
    assert list(records.read_records(written(tmp_path / "out"))) == [b"one", b""]
    back = spark.read.format("tfrecord").option("recordType", "ByteArray").load(str(tmp_path))
    assert back.dtypes == [("byteArray", "binary")]
    assert [bytes(row[0]) for row in back.collect()] == [b"one", b""]


def test_load_accepts_globs_and_many_paths_and_skips_hidden_files(
    spark: Any, tmp_path: Path
) -> None:
    for name in ("a-1", "a-2", "b/c", "_d", ".e"):
        records.write_examples(tmp_path / name, [{"name": name}])
    load = spark.read.format("tfrecord").schema("name string").load
    names = [row[0] for row in load([f"{tmp_path}/a-*", f"{tmp_path}/b"]).collect()]
    assert sorted(names) == ["a-1", "a-2", "b/c"]
    assert sorted(row[0] for row in load(str(tmp_path)).collect()) == ["a-1", "a-2", "b/c"]
    assert [row[0] for row in load(f"file://{tmp_path}/b").collect()] == ["b/c"]


def test_large_file_is_read_by_several_tasks_in_order(spark: Any, tmp_path: Path) -> None:
    records.write_examples(tmp_path / "a", {"x": list(range(100_000))})
    reader = spark.read.format("tfrecord").option("maxPartitionBytes", "1m")
    df = reader.load(str(tmp_path / "a"))
    assert df.rdd.getNumPartitions() > 1
    assert [row[0] for row in df.collect()] == list(range(100_000))


def test_each_partition_writes_one_file_named_like_spark(spark: Any, tmp_path: Path) -> None:
    df = spark.range(100).repartition(4)
    df.write.format("tfrecord").mode("append").option("codec", "deflate").save(
        str(tmp_path / "out")
    )
    names = [Path(name).name for name in written(tmp_path / "out")]
    assert [name[:11] for name in names] == [f"part-0000{n}-" for n in range(4)]
    assert all(name.endswith(".tfrecord.deflate") for name in names)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_SUCCESS", *names]


def test_empty_dataframe_writes_an_empty_file(spark: Any, tmp_path: Path) -> None:
    spark.range(0).write.format("tfrecord").mode("append").save(str(tmp_path / "out"))
    assert len(written(tmp_path / "out")) == 1
    back = spark.read.format("tfrecord").schema("id long").load(str(tmp_path / "out"))
    assert back.collect() == []


def test_failed_write_leaves_existing_files_unchanged(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    out = tmp_path / "out"
    spark.range(5).write.format("tfrecord").mode("append").save(str(out))
    before = written(out)
    bad = (
        spark.range(100)
        .repartition(4)
        .select(
            f.when(f.col("id") == 77, f.raise_error(f.lit("no!")))
            .otherwise(f.col("id"))
            .alias("id")
        )
    )
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception, match="no!"):
            bad.write.format("tfrecord").mode(mode).save(str(out))
        assert sorted(str(path) for path in out.rglob("*")) == [str(out / "_SUCCESS"), *before]


def test_write_locality_local_writes_on_executors(spark: Any, tmp_path: Path) -> None:
    write = spark.range(10).repartition(2).write.format("tfrecord").option("writeLocality", "local")
    write.mode("append").save(str(tmp_path / "out"))
    assert len(written(tmp_path / "out")) == 2
    assert records.read_table(written(tmp_path / "out")).num_rows == 10
    with pytest.raises(Exception, match="writeLocality is local"):
        write.mode("overwrite").save(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recordTpye": "Example"}, "no option recordtpye"),
        ({"codec": "snappy"}, "use gzip or deflate"),
        ({"recordType": "ByteArray"}, "one column, of binary"),
    ],
)
def test_wrong_use_fails_before_anything_is_written(
    spark: Any, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.range(3).write.format("tfrecord").options(**options).mode("append").save(
            str(tmp_path / "out")
        )
    assert not (tmp_path / "out").exists()


def test_damage_names_file_and_record(spark: Any, tmp_path: Path) -> None:
    records.write_examples(tmp_path / "a", {"x": list(range(1000))})
    data = bytearray((tmp_path / "a").read_bytes())
    data[-10] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(Exception, match=r"a: record 999 at offset \d+: the data .* checksum"):
        spark.read.format("tfrecord").schema("x long").load(str(tmp_path)).collect()


def test_files_can_be_queried_in_sql(spark: Any, tmp_path: Path) -> None:
    records.write_examples(tmp_path / "a", {"x": [1, 2, 3]})
    spark.sql(f"CREATE TEMPORARY VIEW numbers USING tfrecord OPTIONS (path '{tmp_path}')")
    assert spark.sql("SELECT sum(x) FROM numbers").first()[0] == 6


def test_guide_says_what_to_call_instead_of_what_spark_refuses(spark: Any, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/guide/spark-records.md").read_text()
    table = guide.partition("| call | Spark says | instead |")[2].partition("\n\n")[0]
    found, out = str(tmp_path / "in"), str(tmp_path / "out")
    df = spark.createDataFrame([(1, "a")], "id long, k string")
    df.write.format("tfrecord").mode("append").save(found)
    write, read = df.write.format("tfrecord"), spark.read.format("tfrecord")
    calls: dict[str, Callable[[], object]] = {
        "`.save(path)`": lambda: df.write.format("tfrecord").save(out),
        '`.mode("ignore")`': lambda: df.write.format("tfrecord").mode("ignore").save(out),
        "`.partitionBy(": lambda: write.partitionBy("k").mode("append").save(out),
        "``FROM tfrecord.": lambda: spark.sql(f"SELECT * FROM tfrecord.`{found}`"),
        "`pathGlobFilter`": lambda: read.option("pathGlobFilter", "*").load(found),
        "`recursiveFileLookup`": lambda: (
            spark.read.format("tfrecord").option("recursiveFileLookup", "true").load(found)
        ),
        "`saveAsTable(": lambda: df.write.format("tfrecord").saveAsTable("t"),
        "`CREATE TABLE": lambda: spark.sql(f"CREATE TABLE t USING tfrecord LOCATION '{found}'"),
        "`INSERT OVERWRITE": lambda: spark.sql(
            f"INSERT OVERWRITE DIRECTORY '{out}' USING tfrecord SELECT 1 AS id"
        ),
        "`_metadata": lambda: spark.read.format("tfrecord").load(found).select("_metadata.x"),
    }
    for call, refused in calls.items():
        [row] = [line for line in table.splitlines() if call in line]
        said = row.split("|")[2].strip().strip("`")
        with pytest.raises(Exception, match=said):
            refused()
    assert not Path(out).exists()
    named = spark.read.format("tfrecord").load(found).selectExpr("input_file_name()")
    assert named.first()[0] == ""
