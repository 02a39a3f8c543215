"""TFRecord files in Spark, compared with data sources in pure Python (upb) and in Scala.

Phalanx takes part twice: with its data source in Python, and with its jar (`make jar`). The Scala
source (spark_peer.scala) works inside the JVM, like the jar; the compiler inside pyspark compiles
it. The contestants take turns in one session. Every figure is the median of the rounds: the wall
time, and the CPU time of all processes, which says more on a machine that does other work.
"""

from __future__ import annotations

import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from startup import Cost, measure_tree

from records import result, small_columns

ROUNDS, WARM_UP = 7, 2
HERE = Path(__file__).parent
JAR = HERE.parent / "java/build/phalanx-spark.jar"


def compile_peer(directory: Path) -> Path:
    """Compile the Scala source into a jar."""
    import pyspark

    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    classes, jar = directory / "classes", directory / "peer.jar"
    classes.mkdir()
    scala = ["java", "-cp", jars, "scala.tools.nsc.Main", "-usejavacp", "-nowarn", "-d"]
    subprocess.run([*scala, classes, HERE / "spark_peer.scala"], check=True)
    subprocess.run(["jar", "cf", jar, "-C", classes, "."], check=True)
    return jar


def make_upb_source() -> Any:
    """Make a straightforward Python data source: protobuf, one message at a time."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceWriter,
        InputPartition,
        WriterCommitMessage,
    )

    class Reader(DataSourceReader):
        def __init__(self, path: str, schema: Any) -> None:
            self.path, self.schema = path, schema

        def partitions(self) -> list[Any]:
            return [InputPartition(str(file)) for file in sorted(Path(self.path).glob("[!_.]*"))]

        def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
            from phalanx.records.codec.fallback import message_classes

            message_class, _ = message_classes()
            kinds = []
            for field in self.schema.fields:
                text = field.dataType.simpleString()
                kind = "bytes" if "string" in text else "float" if "float" in text else "int64"
                kinds.append((field.name, f"{kind}_list", text.startswith("array"), kind))
            with Path(partition.value).open("rb") as file:
                while header := file.read(12):
                    example = message_class.FromString(
                        file.read(struct.unpack_from("<Q", header)[0])
                    )
                    file.read(4)
                    features, row = example.features.feature, []
                    for name, attribute, is_array, kind in kinds:
                        values = getattr(features[name], attribute).value
                        if is_array:
                            row.append(list(values))
                        else:
                            row.append(values[0].decode() if kind == "bytes" else values[0])
                    yield tuple(row)

    class Writer(DataSourceWriter):
        def __init__(self, path: str) -> None:
            self.path = path

        def write(self, iterator: Iterator[Any]) -> Any:
            from pyspark import TaskContext

            from phalanx.records import RecordWriter
            from phalanx.records.codec.fallback import message_classes

            message_class, _ = message_classes()
            number = TaskContext.get().partitionId()  # type: ignore[union-attr]
            with RecordWriter(f"{self.path}/part-{number:05d}") as writer:
                for row in iterator:
                    example = message_class()
                    feature = example.features.feature
                    for name, value in row.asDict().items():
                        if isinstance(value, str):
                            feature[name].bytes_list.value.append(value.encode())
                        elif isinstance(value, float):
                            feature[name].float_list.value.append(value)
                        elif isinstance(value, int):
                            feature[name].int64_list.value.append(value)
                        else:
                            feature[name].int64_list.value.extend(value)
                    writer.write(example.SerializeToString())
            return WriterCommitMessage()

    class UpbSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "upb"

        def reader(self, schema: Any) -> Any:
            return Reader(self.options["path"], schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Writer(self.options["path"])

    return UpbSource


def make_python_source() -> Any:
    """The data source in Python, under a name that the jar does not have."""
    from phalanx.records.spark.source import TFRecordSource

    class PythonSource(TFRecordSource):
        @classmethod
        def name(cls) -> str:
            return "python"

    return PythonSource


def measure(contestants: dict[str, Callable[[], object]]) -> dict[str, Cost]:
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for turn in range(WARM_UP + ROUNDS):
        for name, run in contestants.items():
            started, before = time.perf_counter(), sum(measure_tree(os.getpid()).values())
            run()
            wall = time.perf_counter() - started
            cpu = sum(measure_tree(os.getpid()).values()) - before
            if turn >= WARM_UP:
                costs[name].append(Cost(wall, cpu))
    medians = {}
    for name, taken in costs.items():
        walls = [cost.wall for cost in taken]
        medians[name] = median = Cost(
            statistics.median(walls), statistics.median(cost.cpu for cost in taken)
        )
        print(
            f"  {name:20} {median.wall:7.3f} s (best {min(walls):.3f} s), "
            f"{median.cpu:7.3f} s of CPU time",
            flush=True,
        )
    return medians


def compare(name: str, costs: dict[str, Cost], pair: tuple[str, str], unit: str, goal: str) -> None:
    """Print the ratio of two contestants, in wall time and in CPU time."""
    over, under = (costs[each] for each in pair)
    result(name, over.wall / under.wall, unit, goal)
    result(f"{name}-cpu", over.cpu / under.cpu, unit, goal)


def succeeds(run: Callable[[], object]) -> bool:
    try:
        run()
    except Exception:
        return False
    return True


def main() -> None:
    from pyspark.sql import SparkSession

    from phalanx.records import RecordWriter, write_examples
    from phalanx.records.spark import count

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = {
            "spark.jars": f"{compile_peer(directory)},{JAR}",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        spark.dataSource.register(make_upb_source())
        spark.dataSource.register(make_python_source())
        source = str(directory / "small")
        write_examples(f"{source}/train.tfrecord", small_columns(), shards=2)
        schema = spark.read.format("tfrecord").load(source).schema

        def read(format_: str) -> Callable[[], object]:
            reader = spark.read.format(format_).schema(schema)
            return lambda: reader.load(source).write.format("noop").mode("overwrite").save()

        print("read: 200,000 small Examples in two files, to columns")
        peer = "phalanx.benchmark.TFRecordPeer"
        names = {"upb": "upb", "python": "python", "jar": "tfrecord", "scala": peer}
        costs = measure({name: read(format_) for name, format_ in names.items()})
        compare("spark-read", costs, ("upb", "python"), "x-upb", ">= 5")
        compare("spark-read-scala", costs, ("jar", "scala"), "x-scala", "<= 1.15")

        rows = spark.read.format("tfrecord").load(source).cache()
        rows.count()

        def write(format_: str) -> Callable[[], object]:
            target = str(directory / format_)
            return lambda: rows.write.format(format_).mode("overwrite").save(target)

        print("write: the same Examples, from memory")
        costs = measure({name: write(format_) for name, format_ in names.items()})
        compare("spark-write", costs, ("upb", "python"), "x-upb", ">= 5")
        compare("spark-write-scala", costs, ("jar", "scala"), "x-scala", "<= 1.15")

        print("count: the same Examples")
        reader = spark.read.format("tfrecord").schema(schema)
        one = reader.load(source).select("hour").write.format("noop").mode("overwrite")
        costs = measure(
            {
                "all columns": read("tfrecord"),
                "one column": one.save,
                "df.count()": reader.load(source).count,
                "count": lambda: count(spark, source),
            }
        )
        compare("spark-one-column", costs, ("one column", "all columns"), "x-all", "<= 0.8")
        # Records that cannot be decoded can be counted only without decoding them.
        spark.sparkContext.setLogLevel("OFF")
        with RecordWriter(directory / "noise" / "a") as writer:
            writer.write_all([b"\xff"] * 10)
        noise = str(directory / "noise")
        result("spark-count-undecoded", succeeds(lambda: count(spark, noise)), "yes", ">= 1")
        result("spark-df-count-undecoded", succeeds(reader.load(noise).count), "yes", ">= 1")
        spark.stop()


if __name__ == "__main__":
    main()
