"""All save modes and partition columns, in a real Spark."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import DataError
from phalanx.records import RecordWriter

ROWS = [(1, "DE", date(2026, 1, 31), 0.5), (2, "A/B", None, 1.5), (3, None, date(2026, 2, 1), 2.5)]
DDL = "id int, country string, day date, x float"


def load(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("tfrecord").options(**options).load(str(path))


def ids(df: Any) -> list[int]:
    return sorted(row["id"] for row in df.collect())


def test_save_modes(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import count, save

    out = tmp_path / "out"
    save(spark.range(3), str(out))
    with pytest.raises(DataError, match="out already exists: choose another path, or the mode"):
        save(spark.range(3), str(out))
    save(spark.range(5), str(out), mode="ignore")
    assert count(spark, str(out)) == 3
    save(spark.range(5), str(out), mode="append")
    assert count(spark, str(out)) == 8
    save(spark.range(2), str(out), mode="overwrite", codec="gzip")
    assert ids(load(spark, out)) == [0, 1]
    assert all(path.name == "_SUCCESS" or path.suffix == ".gz" for path in out.iterdir())


KINDS = (
    "CAST(5 AS BYTE)", "-7", "3000000000L", "'99999999999999999999'", "CAST(0.1 AS FLOAT)", "0.1D",
    "1e20D", "1e-7D", "double('NaN')", "double('-Infinity')", "DATE'2026-01-31'", "'1e3'", "'007'",
    "TIMESTAMP'2026-01-31 10:11:12.123456'", "CAST(1.50 AS DECIMAL(10, 2))", "true", "'a b/c=d%'",
    "'1d'", "'+5'", "'5.'", "' 5'", "'2026-1-3'", "INTERVAL '1' DAY",
)  # fmt: skip


def test_partition_values_equal_those_of_spark(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import save

    names = [f"k{number}" for number in range(len(KINDS))]
    columns = ", ".join(f"{kind} AS {name}" for kind, name in zip(KINDS, names, strict=True))
    df = spark.sql(f"SELECT 1L AS id, {columns}")
    df.write.partitionBy(*names).parquet(str(tmp_path / "theirs"))
    save(df, str(tmp_path / "ours"), partition_by=names)
    theirs, ours = (
        next((tmp_path / each).glob("/".join(["k*=*"] * len(names)))).relative_to(tmp_path / each)
        for each in ("theirs", "ours")
    )
    assert ours == theirs
    expected, back = spark.read.parquet(str(tmp_path / "theirs")), load(spark, tmp_path / "ours")
    assert [field.simpleString() for field in back.schema] == [
        field.simpleString() for field in expected.schema
    ]
    assert str(back.collect()) == str(expected.collect())


def test_time_in_a_partition_has_no_zone(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import save

    df = spark.sql("SELECT 1 AS id, TIMESTAMP'2026-01-31 10:11:12' AS at")
    save(df, str(tmp_path / "out"), partition_by="at")
    back = load(spark, tmp_path / "out")
    assert dict(back.dtypes)["at"] == "timestamp_ntz"
    assert back.where("at = TIMESTAMP'2026-01-31 10:11:12'").count() == 1


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


def test_dynamic_overwrite_keeps_other_partitions(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import save

    out, name = str(tmp_path / "out"), "spark.sql.sources.partitionOverwriteMode"
    save(spark.createDataFrame([(1, "a"), (2, "b")], "id int, k string"), out, partition_by="k")
    more = spark.createDataFrame([(3, "b")], "id int, k string")
    save(more, out, "overwrite", "k", partitionOverwriteMode="dynamic")
    assert ids(load(spark, Path(out))) == [1, 3]
    spark.conf.set(name, "dynamic")
    try:
        save(more.selectExpr("4 AS id", "k"), out, "overwrite", "k")
    finally:
        spark.conf.unset(name)
    assert ids(load(spark, Path(out))) == [1, 4]
    save(more, out, "overwrite", "k")
    assert ids(load(spark, Path(out))) == [3]


def test_input_can_be_overwritten_with_its_result(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import save

    save(spark.range(10), str(tmp_path / "out"))
    save(load(spark, tmp_path / "out").where("id < 4"), str(tmp_path / "out"), mode="overwrite")
    assert ids(load(spark, tmp_path / "out")) == [0, 1, 2, 3]


def test_partition_columns_round_trip_and_prune(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import load as pruned
    from phalanx.records.spark import save

    out = tmp_path / "out"
    df = spark.createDataFrame(ROWS, DDL)
    save(df, str(out), partition_by=["country", "day"])
    directories = sorted(path.relative_to(out).as_posix() for path in out.glob("*/*"))
    null = "__HIVE_DEFAULT_PARTITION__"
    assert directories == sorted(
        ["country=DE/day=2026-01-31", f"country=A%2FB/day={null}", f"country={null}/day=2026-02-01"]
    )
    back = load(spark, out)
    assert dict(back.dtypes) == {"id": "bigint", "x": "float", "country": "string", "day": "date"}
    assert sorted(map(tuple, back.select("id", "country", "day", "x").collect())) == ROWS
    # A pruned file is not opened: this one could not be read.
    with RecordWriter(out / "country=XX" / "day=2026-03-01" / "bad") as writer:
        writer.write(b"\xff no message")
    schema = "id long, x float, country string, day date"

    def chosen(where: str) -> list[int]:
        return ids(pruned(spark, str(out), where=where, schema=schema))

    assert chosen("country = 'DE'") == [1]
    assert chosen("country IN ('DE', 'A/B')") == [1, 2]
    assert chosen("country IS NULL") == [3]
    assert chosen("day < '2026-02-10'") == [1, 3]
    assert chosen("country = 'nowhere'") == []
    whole = pruned(spark, str(out), where="country = 'DE'")
    assert dict(whole.dtypes) == dict(back.dtypes)
    with pytest.raises(Exception, match="the message is damaged"):
        chosen("country = 'XX'")
    with pytest.raises(DataError, match=r"where is 'id = 1', and the partition columns .* country"):
        chosen("id = 1")


def test_queries_of_one_dataframe_are_independent(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import save

    save(spark.range(10).selectExpr("id", "id % 2 AS k"), str(tmp_path / "out"), partition_by="k")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        df = load(spark, tmp_path / "out")
        assert df.where("k = 1").count() == 5
        assert df.count() == 10
        assert df.where("k = 0").union(df).count() == 15
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_partitions_are_compatible_with_other_formats(spark: Any, tmp_path: Path) -> None:
    from phalanx.records.spark import save

    df = spark.createDataFrame([(1, "a b%/é:x"), (2, "c")], "id int, k string")
    save(df, str(tmp_path / "ours"), partition_by="k")
    df.write.partitionBy("k").parquet(str(tmp_path / "theirs"))
    names = [sorted(path.name for path in (tmp_path / each).glob("k=*"))
             for each in ("ours", "theirs")]  # fmt: skip
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "the mode is 'replace': it can be error, ignore, append or"),
        ({"partition_by": ["z"]}, "there is no column z to partition by: there are id"),
    ],
)
def test_wrong_use_is_an_error(
    spark: Any, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    from phalanx.records.spark import save

    with pytest.raises(DataError, match=message):
        save(spark.range(1), str(tmp_path / "out"), **options)
    assert not (tmp_path / "out").exists()


def test_to_example_and_from_example_round_trip(spark: Any) -> None:
    from phalanx.records import decode_examples
    from phalanx.records.spark import from_example, to_example

    df = spark.createDataFrame([(1, 0.5, ["a"], None), (2, None, [], "x")],
                               "i int, d double, s array<string>, n string")  # fmt: skip
    messages = df.select("i", to_example("i", "d", "s", "n").alias("e")).orderBy("i")
    first = decode_examples([bytes(messages.first()["e"])])
    assert first.to_pylist() == [{"d": 0.5, "i": 1, "s": b"a"}]
    rows = messages.select(from_example("e", df.schema).alias("r")).select("r.*")
    assert rows.schema == df.schema
    assert sorted(rows.collect()) == sorted(df.collect())
    some = messages.select(from_example("e", "s array<string>").alias("r"))
    assert [row["r"]["s"] for row in some.collect()] == [["a"], []]


def test_example_functions_handle_sequences_and_nulls(spark: Any) -> None:
    from phalanx.records.spark import from_example, to_example

    df = spark.createDataFrame([([[1], [2, 3]],), (None,)], "q array<array<long>>")
    kind = {"record_type": "SequenceExample"}
    messages = df.select(to_example("q", **kind).alias("e"))
    rows = messages.select(from_example("e", df.schema, **kind).alias("r")).select("r.*")
    assert rows.collect() == df.collect()
    nothing = spark.createDataFrame([(None,)], "e binary").select(from_example("e", "x long"))
    assert nothing.first()[0] is None
    with pytest.raises(Exception, match="recordType to SequenceExample"):
        df.select(to_example("q")).collect()
    with pytest.raises(DataError, match="name the columns"):
        to_example()


def test_from_example_rejects_text_and_decimals_that_would_be_rounded(spark: Any) -> None:
    from phalanx.records.spark import from_example, to_example

    text = spark.createDataFrame([("x",)], "e string")
    with pytest.raises(Exception, match=r"a column of .*string: serialized Examples are binary"):
        text.select(from_example("e", "x long")).collect()
    messages = spark.createDataFrame([(2.5,)], "x float").select(to_example("x").alias("e"))
    assert messages.select(from_example("e", "x decimal(10, 1)").alias("r")).first().r.x == 2.5
    with pytest.raises(Exception, match=r"'x' cannot be read as decimal.* would be rounded to"):
        messages.select(from_example("e", "x decimal(10, 0)")).collect()
