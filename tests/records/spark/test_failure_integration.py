"""Incomplete writes are never visible, whichever process of Spark dies."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.spark import start_spark, stop_spark

from phalanx import records
from phalanx.records.storage.listing import find_files

pytestmark = pytest.mark.slow

# A hundred batches in each of four tasks: more than all buffers hold.
ROWS = 400_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A master and two executors, each a process."""
    session = start_spark(
        "local-cluster[2,1,1024]",
        **{
            "spark.executor.memory": "512m",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.speculation": "true",
        },
    )
    from pyspark import cloudpickle

    # The executors cannot import this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield session
    stop_spark(session)


def wait_until(is_so: Callable[[], bool], seconds: float = 120, pause: float = 0.1) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited too long"
        time.sleep(pause)


def check_complete(out: Path, rows: int) -> None:
    """Check that every row exists once; a slower attempt may take a moment to end."""
    assert (out / "_SUCCESS").exists()
    table = records.read_table(sorted(str(path) for path in out.glob("part-*")))
    assert sorted(table["id"].to_pylist()) == list(range(rows))
    assert all(path.name.startswith("part-") for path in out.iterdir() if path.name[0] != "_")
    wait_until(lambda: not (out / "_temporary").exists())


def once(marker: str, act: Callable[[], None]) -> Callable[[Any], Iterator[Any]]:
    """A function that passes batches on and calls `act` once, in the middle of one task."""

    def pass_on(batches: Any) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 60 and batch.column(0)[0].as_py() < ROWS // 4:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                    act()
            yield batch

    return pass_on


def fail() -> None:
    raise ValueError("this attempt fails")


def kill_executor() -> None:
    """Kill the JVM of this Python worker."""
    pid = os.getpid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    time.sleep(60)


def linger() -> None:
    """Sleep until Spark starts a speculative attempt."""
    time.sleep(60)


@pytest.mark.parametrize("act", [fail, kill_executor, linger])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_failed_killed_and_repeated_tasks_leave_no_files(
    cluster: Any, tmp_path: Path, act: Callable[[], None], mode: str
) -> None:
    marker, out = tmp_path / "marker", tmp_path / "out"
    df = cluster.range(0, ROWS, 1, 4).mapInArrow(once(str(marker), act), "id long")
    df.write.format("tfrecord").mode(mode).save(str(out))
    assert marker.exists()
    check_complete(out, ROWS)


DRIVER = """
import sys, time
from tests.servers.spark import start_spark

spark = start_spark("local[2]", **{"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"})

def slowly(batches):
    for number, batch in enumerate(batches):
        yield batch
        if number == 60 and batch.column(0)[0].as_py() > 100_000:
            time.sleep(300)

df = spark.range(0, 200_000, 1, 2).mapInArrow(slowly, "id long")
df.write.format("tfrecord").mode(sys.argv[2]).save(sys.argv[1])
"""


PUBLISHING_DRIVER = """
import sys
from tests.servers.spark import start_spark
from phalanx.records.spark import save

rows = start_spark("local[2]").range(0, 1_000, 1, 1).selectExpr("id", "id as k")
save(rows, sys.argv[1], mode=sys.argv[2], partition_by="k")
"""


@contextlib.contextmanager
def running_driver(directory: Path, program: str, *arguments: str) -> Iterator[None]:
    """Run a Spark program, and kill it with all its processes at the end."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    (directory / "driver.py").write_text(program)
    path = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]
    driver = subprocess.Popen(
        [sys.executable, directory / "driver.py", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_killed_driver_publishes_nothing_and_loses_nothing(tmp_path: Path, mode: str) -> None:
    out, old = tmp_path / "out", {"id": [1, 2, 3]}
    records.write_examples(out / "old.tfrecord", old)
    with running_driver(tmp_path, DRIVER, str(out), mode):
        # One task has ended, and the other has started.
        wait_until(lambda: len(list(out.glob("_temporary/*/*/*part-*"))) == 2, 400)
        wait_until(lambda: len(list(out.glob("_temporary/*/*/part-*"))) == 1, 400)
    assert [Path(file.path).name for file in find_files([str(out)])] == ["old.tfrecord"]
    assert records.read_table(str(out / "old.tfrecord")).to_pydict() == old
    assert not (out / "_SUCCESS").exists()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_driver_killed_while_publishing_publishes_nothing(tmp_path: Path, mode: str) -> None:
    out = tmp_path / "out"
    records.write_examples(out / "k=-1" / "old.tfrecord", {"id": [1, 2, 3]})
    with running_driver(tmp_path, PUBLISHING_DRIVER, str(out), mode):
        # Some of a thousand files have been moved.
        wait_until(lambda: len(list(out.glob("k=*"))) > 100, 400, pause=0.001)
    assert len(list(out.glob("k=*/part-*"))) > 50
    assert len(list(out.glob("_temporary/*/*/k=*/part-*"))) > 100
    assert [Path(file.path).name for file in find_files([str(out)])] == ["old.tfrecord"]
    assert [Path(path).name for path in records.expand(f"{out}/k=*/*")] == ["old.tfrecord"]
    assert not (out / "_SUCCESS").exists()
