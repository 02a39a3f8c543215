"""`format("tfrecord")` of the jar, in a real Spark: all that the one in Python does, and more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.records.spark.test_functions_integration import KINDS
from tests.records.spark.test_source_integration import columns, written
from tests.servers.processes import wait_for
from tests.servers.spark import start_spark, stop_spark

from phalanx import records
from phalanx.errors import DataError
from phalanx.records import RecordIndex, RecordWriter, encode_examples
from phalanx.records.storage.listing import COMMIT_PREFIX

pytestmark = pytest.mark.slow

JAR = Path(__file__).parents[3] / "java/build/phalanx-spark.jar"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not JAR.exists():
        pytest.skip("the jar is not built: make jar")
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    settings = {"spark.jars": str(JAR), "spark.sql.warehouse.dir": warehouse}
    session = start_spark("local[2]", **settings)
    yield session
    stop_spark(session)


def load(spark: Any, *paths: Path | str, **options: str) -> Any:
    return spark.read.format("tfrecord").options(**options).load([str(path) for path in paths])


def values(df: Any) -> list[Any]:
    return sorted(row[0] for row in df.collect())


def in_python(path: Path, **options: str) -> Any:
    """The columns that the data source in Python infers."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from phalanx.records.spark.dataset import find_dataset, infer_dataset
    from phalanx.records.spark.options import Options

    parsed = Options.parse({"path": str(path), **options})
    return from_arrow_schema(infer_dataset(parsed, find_dataset(parsed)))


@pytest.mark.parametrize("name", ["tfrecord", "tfrecords"])
def test_jar_is_preferred_to_python(spark: Any, tmp_path: Path, name: str) -> None:
    records.write_examples(tmp_path / "a", {"x": [1, 2, 3], "y": [4, 5, 6]})
    df = spark.read.format(name).load(str(tmp_path)).select("x")
    plan = df._jdf.queryExecution().executedPlan().toString()
    assert f"FileScan {name} [x" in plan
    assert "ReadSchema: struct<x:bigint>" in plan
    assert values(df) == [1, 2, 3]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("codec", ["", "gzip", "deflate"])
def test_every_type_round_trips_in_the_bytes_of_the_package(
    spark: Any, tmp_path: Path, depth: int, codec: str
) -> None:
    ddl, rows = columns(depth)
    options = {"codec": codec, "recordType": "SequenceExample" if depth == 2 else "Example"}
    df = spark.createDataFrame(rows, ddl).coalesce(1)
    df.write.format("tfrecord").options(**options).save(str(tmp_path / "out"))
    back = load(spark, tmp_path / "out", recordType=options["recordType"]).schema
    assert back == in_python(tmp_path / "out", recordType=options["recordType"], binaryColumns="")
    reader = spark.read.format("tfrecord").options(**options).schema(ddl)
    again = reader.load(str(tmp_path / "out"))
    assert again.schema == df.schema
    assert again.collect() == df.collect()
    plain = df.drop("decimal")  # which Arrow would have to convert first
    plain.write.format("tfrecord").options(**options).save(str(tmp_path / "plain"))
    stored = list(records.read_records(written(tmp_path / "plain")))
    assert stored == encode_examples(plain.toArrow())


def test_vectors_round_trip(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(1, Vectors.dense([1.0, 2.0])), (2, Vectors.sparse(3, {1: 5.0})), (3, None)]
    df = spark.createDataFrame(rows, spark.createDataFrame(rows[:1], ["id", "v"]).schema)
    df.write.format("tfrecord").save(str(tmp_path / "out"))
    back = spark.read.format("tfrecord").schema(df.schema).load(str(tmp_path / "out"))
    assert [tuple(row) for row in back.orderBy("id").collect()] == [
        (1, Vectors.dense([1.0, 2.0])),
        (2, Vectors.dense([0.0, 5.0, 0.0])),
        (3, None),
    ]


def test_many_columns_are_read_in_any_order(spark: Any, tmp_path: Path) -> None:
    names = [f"c{number:02d}" for number in range(50)]
    df = spark.range(20).selectExpr(*(f"id * {n} AS {name}" for n, name in enumerate(names)))
    df.coalesce(1).write.format("tfrecord").save(str(tmp_path / "out"))
    back = load(spark, tmp_path / "out")
    assert back.columns == names
    assert back.collect() == df.collect()
    some = ["c49", "c00", "missing", "c17"]
    reader = spark.read.format("tfrecord").schema(", ".join(f"{name} long" for name in some))
    assert [tuple(row) for row in reader.load(str(tmp_path / "out")).collect()] == [
        (49 * row, 0, None, 17 * row) for row in range(20)
    ]


def test_same_table_is_found_in_the_cache(spark: Any, tmp_path: Path) -> None:
    records.write_examples(tmp_path / "a", {"x": [1, 2, 3]})
    cached = load(spark, tmp_path).cache()
    assert cached.count() == 3
    plan = load(spark, tmp_path)._jdf.queryExecution().executedPlan().toString()
    assert "InMemoryTableScan" in plan
    cached.unpersist()


def test_schema_is_inferred_as_in_python(spark: Any, tmp_path: Path) -> None:
    records.write_examples(tmp_path / "a", [{"i": 1, "f": 0.5, "s": "x", "l": [1], "m": 1}])
    records.write_examples(tmp_path / "b", [{"i": 2, "s": "y", "l": [1, 2], "m": 0.5, "é": b"z"}])
    records.write_examples(tmp_path / "c" / "empty", [{"e": [[]], "n": None, "i": 1}])
    for options in ({}, {"binaryColumns": "s"}, {"columns": "l,s"}, {"inferRecords": "1"}):
        found = load(spark, tmp_path / "a", tmp_path / "b", **options).schema
        assert found == in_python(tmp_path / "[ab]", **options), options
    sequence = {"recordType": "SequenceExample"}
    assert load(spark, tmp_path / "c", **sequence).schema == in_python(tmp_path / "c", **sequence)
    records.Schema((records.Feature("l", records.Kind.INT64, (None,)),)).save(
        tmp_path / "schema.json"
    )
    assert load(spark, tmp_path / "a", tmp_path / "b").columns == ["l"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"x": 1}, {"x": b"a"}], {}, "'x' holds bytes values, and int64 values were expected"),
        ([{"q": [[1]]}], {}, "set the option recordType to SequenceExample"),
        ([{"x": 1}], {"columns": "y"}, "there is no column y: there are x"),
        ([{}], {}, "there are no features in"),
        ([{"x": 1}], {"recordTpye": "Example"}, "has no option recordtpye: there are recordType"),
        ([{"x": 1}], {"maxPartitionBytes": "1m"}, r"set spark\.sql\.files\.maxPartitionBytes"),
        ([{"x": 1}], {"inferRecords": "0"}, "inferRecords is '0': it must be a number, 1 or more"),
        ([{"x": 1}], {"recordType": "Json"}, "it can be Example, SequenceExample, ByteArray"),
    ],
)
def test_schema_that_cannot_be_inferred_is_explained(
    spark: Any, tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, str], message: str
) -> None:
    for number, row in enumerate(rows):
        records.write_examples(tmp_path / f"file-{number}", [row])
    with pytest.raises(Exception, match=message):
        load(spark, tmp_path, **options)


@pytest.mark.parametrize(
    ("value", "type_", "message"),
    [
        (b"\xff", "string", "'x' holds bytes that are not text: read it as binary"),
        (2**40, "int", "'x' cannot be read as int: 1099511627776 is not between"),
        (2.5, "decimal(10,0)", r"'x' cannot be read as decimal\(10,0\): 2.5 would be rounded to 2"),
        (1e9, "decimal(4,2)", "'x' cannot be read as decimal"),
        (1, "float", "'x' holds int64 values, and float values were expected"),
        ([1, 2], "long", "'x' has 2 values, and 1 were expected"),
        (1, "array<array<long>>", "'x' has arrays of arrays, which only a SequenceExample"),
    ],
)
def test_value_that_does_not_fit_is_named(
    spark: Any, tmp_path: Path, value: Any, type_: str, message: str
) -> None:
    records.write_examples(tmp_path / "a", [{"y": 1}, {"x": value, "y": 2}])
    df = spark.read.format("tfrecord").schema(f"x {type_}, y long").load(str(tmp_path))
    with pytest.raises(Exception, match=message) as caught:
        df.collect()
    assert "array<array" in type_ or "a: record 1 at offset" in str(caught.value)
    assert values(df.select("y")) == [1, 2]


def test_damage_names_file_and_record(spark: Any, tmp_path: Path) -> None:
    records.write_examples(tmp_path / "a", {"x": list(range(1000))})
    data = bytearray((tmp_path / "a").read_bytes())
    data[-10] ^= 1
    (tmp_path / "a").write_bytes(data)
    df = spark.read.format("tfrecord").schema("x long").load(str(tmp_path))
    for run in (df.collect, df.count):
        with pytest.raises(Exception, match=r"a: record 999 at offset \d+: the data .* checksum"):
            run()
    reader = spark.read.format("tfrecord").option("ignoreCorruptFiles", "true")
    assert reader.schema("x long").load(str(tmp_path)).count() == 999


def test_count_decodes_nothing(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import count

    with RecordWriter(tmp_path / "k=1" / "noise") as writer:
        writer.write_all([b"\xff"] * 10)
    df = spark.read.format("tfrecord").schema("x long, k int").load(str(tmp_path))
    assert df.count() == 10
    assert values(df.select("k")) == [1] * 10
    assert count(spark, str(tmp_path)) == 10


@pytest.mark.parametrize(
    ("df", "options", "message"),
    [
        ("SELECT array(1, null) AS x", {}, "'x' has nulls inside its lists"),
        ("SELECT array(array(1)) AS x", {}, "set the option recordType to SequenceExample"),
        ("SELECT map(1, 2) AS x", {}, "(?i)x.* of the type .*map"),
        ("SELECT 1 AS x", {"codec": "snappy"}, "cannot read the codec snappy: use gzip or deflate"),
        (
            "SELECT 1 AS x",
            {"recordType": "ByteArray"},
            r"one column, of binary, .* found x \(int\)",
        ),
        ("SELECT binary(null) AS x", {"recordType": "ByteArray"}, "a record cannot be null"),
        ("SELECT 1 AS x", {"recordTpye": "Example"}, "no option recordtpye"),
    ],
)
def test_rows_that_cannot_be_written_are_explained(
    spark: Any, tmp_path: Path, df: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.sql(df).write.format("tfrecord").options(**options).save(str(tmp_path / "out"))
    assert not list(tmp_path.rglob("part-*"))


def test_byte_array_records_are_not_decoded(spark: Any, tmp_path: Path) -> None:
    df = spark.createDataFrame([(bytearray(b"one"),), (bytearray(b""),)], "byteArray binary")
    write = df.coalesce(1).write.format("tfrecord").option("recordType", "ByteArray")
    write.save(str(tmp_path / "out"))
    assert list(records.read_records(written(tmp_path / "out"))) == [b"one", b""]
    back = load(spark, tmp_path / "out", recordType="ByteArray")
    assert back.dtypes == [("byteArray", "binary")]
    assert [bytes(row[0]) for row in back.collect()] == [b"one", b""]


def test_save_modes(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spark.range(3).write.format("tfrecord").save(str(out))
    with pytest.raises(Exception, match="already exists"):
        spark.range(3).write.format("tfrecord").save(str(out))
    spark.range(5).write.format("tfrecord").mode("ignore").save(str(out))
    assert load(spark, out).count() == 3
    spark.range(5).write.format("tfrecord").mode("append").save(str(out))
    assert load(spark, out).count() == 8
    spark.range(2).write.format("tfrecord").mode("overwrite").option("codec", "gzip").save(str(out))
    assert values(load(spark, out)) == [0, 1]
    assert all(path.suffix == ".gz" for path in out.glob("part-*"))


def test_partition_values_are_those_of_spark(spark: Any, tmp_path: Path) -> None:
    names = [f"k{number}" for number in range(len(KINDS))]
    kinds = ", ".join(f"{kind} AS {name}" for kind, name in zip(KINDS, names, strict=True))
    df = spark.sql(f"SELECT 1L AS id, {kinds}")
    df.write.partitionBy(*names).parquet(str(tmp_path / "theirs"))
    df.write.partitionBy(*names).format("tfrecord").save(str(tmp_path / "ours"))
    expected, back = spark.read.parquet(str(tmp_path / "theirs")), load(spark, tmp_path / "ours")
    assert back.schema == expected.schema
    assert str(back.collect()) == str(expected.collect())


def test_dynamic_overwrite_keeps_other_partitions(spark: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    first = spark.createDataFrame([(1, "a"), (2, "b")], "id long, k string")
    first.write.format("tfrecord").partitionBy("k").save(out)
    more = spark.createDataFrame([(3, "b")], "id long, k string")
    write = more.write.format("tfrecord").partitionBy("k").mode("overwrite")
    write.option("partitionOverwriteMode", "dynamic").save(out)
    assert values(load(spark, out)) == [1, 3]
    write.option("partitionOverwriteMode", "static").save(out)
    assert values(load(spark, out)) == [3]


def test_files_are_selected_as_for_other_formats(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    for name in ("a-1.tfrecord", "a-2.tfrecord", "b/c.tfrecord", "_d", ".e"):
        records.write_examples(tmp_path / name, [{"name": name}])
    assert values(load(spark, tmp_path)) == ["a-1.tfrecord", "a-2.tfrecord"]
    assert len(values(load(spark, tmp_path, recursiveFileLookup="true"))) == 3
    assert values(load(spark, tmp_path, pathGlobFilter="*-1*")) == ["a-1.tfrecord"]
    assert len(values(load(spark, f"{tmp_path}/a-{{1,2}}.tfrecord"))) == 2
    assert len(values(load(spark, tmp_path / "a-1.tfrecord", tmp_path / "b"))) == 2
    reader = spark.read.format("tfrecord").schema("name string")
    assert reader.option("modifiedBefore", "2001-01-01T00:00:00").load(str(tmp_path)).count() == 0
    names = load(spark, tmp_path).select(f.input_file_name(), "_metadata.file_name", "name")
    for path, name, stored in names.collect():
        assert path.endswith(f"/{stored}")
        assert name == stored
    assert values(spark.sql(f"SELECT * FROM tfrecord.`{tmp_path}/b`")) == ["b/c.tfrecord"]


def test_tables_of_the_catalog(spark: Any, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1, "a"), (2, "b")], "id long, k string")
    df.write.format("tfrecord").partitionBy("k").saveAsTable("letters")
    spark.sql("INSERT INTO letters PARTITION (k = 'c') VALUES (3)")
    assert values(spark.table("letters").where("k > 'a'")) == [2, 3]
    spark.sql("DROP TABLE letters")


def test_indexed_file_is_read_by_several_tasks_in_order(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a"
    records.write_examples(path, {"x": list(range(100_000))})
    name = "spark.sql.files.maxPartitionBytes"
    spark.conf.set(name, "1m")
    try:
        assert load(spark, tmp_path).rdd.getNumPartitions() == 1
        RecordIndex.build(str(path), stride=64).save()
        df = load(spark, tmp_path)
        assert df.rdd.getNumPartitions() > 1
        assert [row[0] for row in df.collect()] == list(range(100_000))
        with path.open("r+b") as file:
            file.seek(-3, 2)
            file.write(b"?")
        with pytest.raises(Exception, match=r"a: record 99999 at offset \d+: the data"):
            df.collect()
        records.write_examples(path, {"x": [1, 2]})  # the index is out of date now
        assert values(load(spark, path)) == [1, 2]
    finally:
        spark.conf.unset(name)


def test_files_of_an_unfinished_commit_are_ignored(spark: Any, tmp_path: Path) -> None:
    for name in ("k=1/old", "k=1/new", "k=2/new"):
        records.write_examples(tmp_path / name, [{"name": name}])
    hidden = tmp_path / f"{COMMIT_PREFIX}1"
    hidden.write_text('["k=1/new", "k=2/new"]')
    assert values(load(spark, tmp_path).select("name")) == ["k=1/old"]
    hidden.unlink()
    assert len(values(load(spark, tmp_path))) == 3


def test_functions_use_the_jar(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import count, load, save

    out = str(tmp_path / "out")
    df = spark.createDataFrame([(1, "DE"), (2, "FR"), (3, "DE")], "id long, country string")
    save(df, out, partition_by=["country"], codec="gzip")
    with pytest.raises(Exception, match="already exists"):
        save(df, out)
    save(df, out, mode="ignore")
    assert count(spark, out) == 3
    assert values(load(spark, out, where="country = 'DE'")) == [1, 3]
    # What overwrite replaces must still be there when a write cannot begin.
    for bad, options in (("map(1, 2) AS x", {}), ("id", {"codec": "snappy"})):
        with pytest.raises(DataError):
            save(df.selectExpr(bad), out, mode="overwrite", **options)
    assert count(spark, out) == 3


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_write_can_be_repeated_after_a_failure(spark: Any, tmp_path: Path, mode: str) -> None:
    from phalanx.records.spark import count, save

    out = tmp_path / "out"
    bad = spark.range(3).selectExpr("raise_error('no') AS id")
    with pytest.raises(Exception, match="no"):
        save(bad, str(out), mode=mode)
    assert not out.exists()
    save(spark.range(3), str(out), mode=mode)
    assert count(spark, str(out)) == 3
    # A directory that was there before is not ours to remove.
    (tmp_path / "empty").mkdir()
    with pytest.raises(Exception, match="no"):
        save(bad, str(tmp_path / "empty"), mode="append")
    assert (tmp_path / "empty").exists()


def test_write_locality_local_writes_on_executors(spark: Any, tmp_path: Path) -> None:
    write = spark.range(10).repartition(2).write.format("tfrecord").option("writeLocality", "local")
    write.save(str(tmp_path / "out"))
    assert len(written(tmp_path / "out")) == 2
    assert records.read_table(written(tmp_path / "out")).num_rows == 10
    bad = spark.range(10).repartition(2).selectExpr("if(id = 7, raise_error('no'), id) AS id")
    with pytest.raises(Exception, match="no"):
        bad.write.format("tfrecord").option("writeLocality", "local").save(str(tmp_path / "bad"))
    assert all(records.read_table(path).num_rows > 0 for path in written(tmp_path / "bad"))
    # The other task may outlive the job.
    wait_for(lambda: not list((tmp_path / "bad").rglob(".part*.part")))


def test_streams_read_and_write_each_file_once(spark: Any, tmp_path: Path) -> None:
    spark.range(5).write.format("tfrecord").save(str(tmp_path / "in"))

    def run() -> list[int]:
        new = spark.readStream.format("tfrecord").schema("id long").load(str(tmp_path / "in"))
        write = new.writeStream.format("tfrecord").option("path", str(tmp_path / "out"))
        write = write.option("checkpointLocation", str(tmp_path / "checkpoint"))
        write.trigger(availableNow=True).start().awaitTermination()
        return values(load(spark, tmp_path / "out"))

    assert run() == [0, 1, 2, 3, 4]
    spark.range(5, 7).write.format("tfrecord").mode("append").save(str(tmp_path / "in"))
    assert run() == [0, 1, 2, 3, 4, 5, 6]
