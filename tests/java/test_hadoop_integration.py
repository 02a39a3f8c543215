"""The Hadoop formats: in MapReduce (LocalJobRunner), and in Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.spark import start_spark, stop_spark

from phalanx import records

ROOT = Path(__file__).parents[2]
JAR = ROOT / "java/build/phalanx-hadoop.jar"
INPUT = "phalanx.hadoop.TFRecordFileInputFormat"
OUTPUT = "phalanx.hadoop.TFRecordFileOutputFormat"
BYTES = "org.apache.hadoop.io.BytesWritable"
NULL = "org.apache.hadoop.io.NullWritable"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def jar() -> Path:
    """The jar, as `make jar` builds it."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("javac") is None:
        pytest.skip("there is no Java compiler")
    if not JAR.exists():
        pytest.skip("the jar is not built: make jar")
    return JAR


@pytest.mark.slow
def test_jars_are_built_with_a_java_compiler_alone(jar: Path, tmp_path: Path) -> None:
    import pyspark

    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "java", tmp_path / "java", ignore=shutil.ignore_patterns("build"))
    jars = f"HADOOP_JARS={Path(pyspark.__file__).parent}/jars"
    subprocess.run(["make", "jar", jars], cwd=tmp_path, check=True, timeout=240)
    built = {path.name for path in (tmp_path / "java/build").glob("*.jar")}
    assert built == {"phalanx-hadoop.jar", "phalanx-spark.jar"}
    assert not (tmp_path / ".venv").exists()


def compile_program(jar: Path, source: Path, classes: Path) -> Run:
    """Compile a program, and return a function that runs it."""
    import pyspark

    jars = f"{jar}:{Path(pyspark.__file__).parent}/jars/*"
    subprocess.run(["javac", "-cp", jars, "-d", classes, source], check=True, timeout=120)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["java", "-cp", f"{classes}:{jars}", source.stem, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def word_count(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the example as a MapReduce job."""
    source = ROOT / "examples/hadoop/WordCount.java"
    return compile_program(jar, source, tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def habits(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    source = Path(__file__).parent / "Habits.java"
    return compile_program(jar, source, tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def spark(jar: Path) -> Iterator[Any]:
    session = start_spark(**{"spark.jars": str(jar)})
    yield session
    stop_spark(session)


def write(path: Path, count: int = 1000) -> list[bytes]:
    lines = [b"the cat %d" % number for number in range(count)]
    with records.RecordWriter(path) as writer:
        writer.write_all(lines)
    return lines


def read(spark: Any, path: object, **conf: str) -> Any:
    rdd = spark.sparkContext.newAPIHadoopFile(str(path), INPUT, BYTES, NULL, conf=conf)
    return rdd.map(lambda pair: bytes(pair[0]))


@pytest.mark.parametrize(
    ("codec", "ending"),
    [
        (None, ".tfrecord"),
        ("GzipCodec", ".tfrecord.gz"),
        ("DefaultCodec", ".tfrecord.deflate"),
    ],
)
def test_words_are_counted_by_map_reduce(
    word_count: Run, tmp_path: Path, codec: str | None, ending: str
) -> None:
    for name in ("a.tfrecord", "b.tfrecord.gz", "c.tfrecord.zlib"):
        write(tmp_path / "in" / name, 50)
    options = []
    if codec:
        prefix = "mapreduce.output.fileoutputformat.compress"
        options = ["-D", f"{prefix}=true",
                   "-D", f"{prefix}.codec=org.apache.hadoop.io.compress.{codec}"]  # fmt: skip
    done = word_count(*options, tmp_path / "in", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (part,) = (tmp_path / "out").glob("part-*")
    assert part.name == f"part-r-00000{ending}"
    assert (tmp_path / "out/_SUCCESS").exists()
    counts = dict(line.decode().split("\t") for line in records.read_records(part))
    assert (counts["the"], counts["cat"], counts["49"]) == ("150", "150", "3")


def test_failed_job_leaves_no_output(word_count: Run, tmp_path: Path) -> None:
    write(tmp_path / "in/a")
    with (tmp_path / "in/a").open("r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(b"\xff")
    assert word_count(tmp_path / "in", tmp_path / "out").returncode == 1
    assert not list((tmp_path / "out").glob("part-*"))
    assert not (tmp_path / "out/_SUCCESS").exists()
    assert word_count(tmp_path / "in").returncode == 2


def test_collected_keys_are_exactly_the_records(habits: Run, tmp_path: Path) -> None:
    lines = write(tmp_path / "a", 30)
    assert habits("collect", tmp_path).stdout.encode().splitlines() == lines


def test_checksums_are_ignored_if_the_configuration_says_so(habits: Run, tmp_path: Path) -> None:
    write(tmp_path / "a", 1)
    data = bytearray((tmp_path / "a").read_bytes())
    data[12] ^= 1
    (tmp_path / "a").write_bytes(data)
    assert "record 0 at offset 0: the data does not fit" in habits("collect", tmp_path).stderr
    read_anyway = habits("-D", "tensorflow.read.crc32check=false", "collect", tmp_path)
    assert read_anyway.stdout == "uhe cat 0\n"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "part-00000.tfrecord"),
        (["-D", "phalanx.tfrecord.extension=none"], "part-00000"),
        (["-D", "mapreduce.output.fileoutputformat.compress=true"], "part-00000.tfrecord.deflate"),
    ],
)
def test_older_api_writes_records(
    habits: Run, tmp_path: Path, options: list[str], name: str
) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    done = habits(*options, "write", tmp_path / "lines", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert list(records.read_records(tmp_path / "out" / name)) == [b"one", b"two"]


def test_streams_of_records_are_written_and_read(habits: Run) -> None:
    assert habits("copy").stdout.split() == ["one", "two"]


def test_indexed_file_is_split(spark: Any, tmp_path: Path) -> None:
    lines = write(tmp_path / "a", 5000)
    limit = {"mapreduce.input.fileinputformat.split.maxsize": "10000"}
    assert read(spark, tmp_path, **limit).getNumPartitions() == 1
    records.RecordIndex.build(str(tmp_path / "a"), stride=16).save()
    split = read(spark, tmp_path, **limit)
    assert split.getNumPartitions() > 5
    assert split.collect() == lines
    write(tmp_path / "a", 10)  # the index is out of date now
    assert read(spark, tmp_path, **limit).count() == 10


def test_spark_writes_by_the_output_format(spark: Any, tmp_path: Path) -> None:
    records.write_examples(tmp_path / "in/a", {"x": list(range(100))})
    before = list(records.read_records(tmp_path / "in/a"))
    pairs = spark.sparkContext.newAPIHadoopFile(str(tmp_path / "in"), INPUT, BYTES, NULL)
    pairs.map(lambda pair: (bytearray(pair[0]), None)).saveAsNewAPIHadoopFile(
        str(tmp_path / "out"), OUTPUT, BYTES, NULL
    )
    parts = sorted((tmp_path / "out").glob("part-*.tfrecord"))
    assert list(records.read_records(parts)) == before
    df = spark.read.format("tfrecord").load(str(tmp_path / "out"))
    assert [row["x"] for row in df.collect()] == list(range(100))


def test_tensorflow_and_java_read_each_other(spark: Any, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    for name, codec in (("a", ""), ("b", "GZIP"), ("c", "ZLIB")):
        with tf.io.TFRecordWriter(str(tmp_path / name),
                                  tf.io.TFRecordOptions(codec)) as writer:  # fmt: skip
            writer.write(name.encode() * 70_000)
            writer.write(b"")
    found = read(spark, tmp_path).collect()
    assert sorted(found) == sorted([b"a" * 70_000, b"b" * 70_000, b"c" * 70_000, b"", b"", b""])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-3], "the file ends in a record of"),
        (lambda data: data[:-30], "the file ends in"),
        (lambda data: data[:5] + b"\xff" + data[6:], "record 0 at offset 0: the length does not"),
        (lambda data: data[:-6] + b"\xff" + data[-5:], "the data does not fit its checksum"),
    ],
)
def test_damage_is_named(
    spark: Any, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    write(tmp_path / "a", 3)
    (tmp_path / "a").write_bytes(damage((tmp_path / "a").read_bytes()))
    with pytest.raises(Exception, match=rf"a: record \d at offset \d+: .*|{message}") as caught:
        read(spark, tmp_path).collect()
    assert message in str(caught.value)
