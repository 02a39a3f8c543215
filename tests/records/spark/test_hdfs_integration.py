"""Spark tables on a real HDFS: a NameNode and a DataNode."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers import hdfs
from tests.servers.spark import start_spark, stop_spark

from phalanx.errors import DataError
from phalanx.records.spark.options import Options
from phalanx.records.spark.output import WriteJob, write_files
from phalanx.records.storage import exists, open_atomic
from phalanx.records.storage.listing import find_files, list_all

JAR = Path(__file__).parents[3] / "java/build/phalanx-spark.jar"

pytestmark = pytest.mark.slow
pytest.importorskip("hdfs_native", reason="hdfs-native not installed: pip install 'phalanx[hdfs]'")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if why := hdfs.why_not():
        pytest.skip(why)
    with hdfs.running_hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture(scope="module")
def spark(url: str) -> Iterator[Any]:
    """A session started by a process that has used HDFS before."""
    session = start_spark("local[2]")
    yield session
    stop_spark(session)


def names(directory: str) -> list[str]:
    """All files of a directory, without the job ids in their names."""
    found = (path.removeprefix(f"{directory}/") for path in list_all(directory))
    return sorted(re.sub("part-.*[.]", "part.", name) for name in found)


@pytest.mark.parametrize("codec", ["", "gzip"])
def test_tables_on_hdfs_are_written_appended_overwritten_and_read(
    spark: Any, url: str, codec: str
) -> None:
    out = f"{url}/tables{codec}"
    df = spark.range(0, 1000, 1, 2).selectExpr("id", "cast(id as string) as name")
    for mode, rows in (("append", 1000), ("append", 2000), ("overwrite", 1000)):
        df.write.format("tfrecord").mode(mode).option("codec", codec).save(out)
        back = spark.read.format("tfrecord").load(out)
        assert back.count() == rows
        assert back.where("name = '7'").first()["id"] == 7
    assert len(find_files([out])) == 2
    assert exists(f"{out}/_SUCCESS")
    assert not exists(f"{out}/_temporary")
    assert spark.read.format("tfrecord").load(f"{out}/part-*").count() == 1000


def test_partitions_are_hdfs_directories(spark: Any, url: str) -> None:
    from phalanx.records.spark import count, load, save

    out = f"{url}/sales"
    rows = [(1, "DE"), (2, "FR"), (3, "DE")]
    sales = spark.createDataFrame(rows, "id long, country string").coalesce(1)
    save(sales, out, partition_by="country")
    save(sales.where("country = 'DE'"), out, mode="overwrite", partition_by="country")
    assert names(out) == ["_SUCCESS", "country=DE/part.tfrecord"]
    assert not exists(f"{out}/country=FR")
    assert count(spark, out) == 2
    german = load(spark, out, where="country = 'DE'")
    assert sorted((row["id"], row["country"]) for row in german.collect()) == [(1, "DE"), (3, "DE")]


def test_stream_reads_and_writes_hdfs(spark: Any, url: str, tmp_path: Path) -> None:
    from phalanx.records.spark import count

    spark.range(0, 10, 1, 2).write.format("tfrecord").mode("append").save(f"{url}/new")
    stream = spark.readStream.format("tfrecord").schema("id long").load(f"{url}/new")
    query = (
        stream.writeStream.format("tfrecord")
        .option("path", f"{url}/copies")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert count(spark, f"{url}/copies") == 10


def test_task_that_outlives_its_job_creates_no_directory_again(url: str) -> None:
    job = WriteJob(f"{url}/late", "one")
    job.begin()

    def batches() -> Iterator[pa.RecordBatch]:
        job.abort()
        yield pa.RecordBatch.from_pydict({"x": [1, 2]})

    directory = f"{job.temporary}/0-1"
    with pytest.raises(DataError, match=r"cannot make the directory .* doesn't exist: [^\n]*$"):
        write_files(batches(), directory, "part", Options(), always=True, root=job.temporary)
    with pytest.raises(FileNotFoundError):
        open_atomic(f"{directory}/part", make_directory=False)
    assert not exists(f"{url}/late")


@pytest.fixture
def spark_with_jar(url: str, tmp_path: Path) -> Callable[[str], str]:
    """Run a program with the jar on executors of their own; HDFS is the default file system."""
    if not JAR.exists():
        pytest.skip("the jar is not built: make jar")
    settings = {"spark.jars": str(JAR), "spark.hadoop.fs.defaultFS": url}
    program = tmp_path / "program.py"

    def run(text: str) -> str:
        program.write_text(f"""
from tests.servers.spark import start_spark
spark = start_spark("local-cluster[2,1,1024]", **{settings!r})
{text}
spark.stop()
""")
        path = str(Path(__file__).parents[3])
        done = subprocess.run([sys.executable, program], env={**os.environ, "PYTHONPATH": path},
                              capture_output=True, text=True, timeout=400, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_jar_reads_and_writes_hdfs_on_executors(
    spark_with_jar: Callable[[str], str], url: str
) -> None:
    printed = spark_with_jar("""
df = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 3 AS k", "array(0.5f, 1.5f) AS l")
df.write.format("tfrecord").partitionBy("k").option("codec", "gzip").save("/jar")
back = spark.read.format("tfrecord").load("/jar")
print(back.dtypes)
print(back.where("k = 1").selectExpr("count(*)", "min(id)", "max(id)").collect())
""")
    assert "[('id', 'bigint'), ('l', 'array<float>'), ('k', 'int')]" in printed
    assert "[Row(count(1)=333, min(id)=1, max(id)=997)]" in printed
    assert len(find_files([f"{url}/jar"])) == 12
