"""The tasks of a job as tasks of one barrier stage, or as threads on the driver."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from phalanx.cluster.spec import split_address
from phalanx.errors import JobError
from phalanx.spark.task import Assignment, TaskPlacement, run_task

Values = Sequence[bytes | None]

_START_SECONDS = 120.0


def find_session(spark: Any = None) -> Any:
    """The session given, or the active one, if it can run barrier stages."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise JobError("PySpark is not installed: pip install 'phalanx[spark]'") from None
    spark = spark or SparkSession.getActiveSession()
    if spark is None:
        raise JobError(
            "there is no Spark session: make one with SparkSession.builder.getOrCreate(), or use "
            "local_mode=True to train on this machine alone"
        )
    if not isinstance(spark, SparkSession):
        raise JobError(
            "this is a Spark Connect session, which has no barrier stages: run the program where "
            "the driver is (spark-submit, or a notebook on the cluster)"
        )
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise JobError(
            "spark.dynamicAllocation.enabled is true: Spark has no barrier stages then; start the "
            "session with it set to false and a fixed spark.executor.instances"
        )
    return spark


def run_on_spark(
    spark: Any, assignment: Assignment, tag: str, gpus: int | None, gpu_resource_name: str
) -> Values:
    """One barrier stage with a Spark task for each task; what each of them returned."""
    context = spark.sparkContext
    count = len(assignment.tasks)

    def run_here(nothing: Iterable[Any]) -> Iterator[bytes | None]:
        from pyspark import BarrierTaskContext  # noqa: PLC0415

        barrier = BarrierTaskContext.get()
        number = barrier.partitionId()
        host, _ = split_address(barrier.getTaskInfos()[number].address)
        held = barrier.resources().get(gpu_resource_name)
        mine = tuple(held.addresses) if held else None
        # Without GPUs from Spark they are nobody's in particular; asked for none, they are hidden.
        place = TaskPlacement(number, host, barrier.cpus(), () if gpus == 0 else mine)
        yield run_task(assignment, place, barrier.allGather)

    rdd = context.parallelize(range(count), count)
    configuration = context.getConf()
    given = configuration.get(f"spark.task.resource.{gpu_resource_name}.amount", "0")
    if gpus and gpus != float(given):
        cpus = int(configuration.get("spark.task.cpus", "1"))
        rdd = rdd.withResources(_profile(cpus, gpus, gpu_resource_name))
    with _tagged(context, tag, f"phalanx: {', '.join(map(str, assignment.tasks))}"):
        return list(rdd.barrier().mapPartitions(run_here).collect())


def _profile(cpus: int, gpus: int, gpu_resource_name: str) -> Any:
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests  # noqa: PLC0415

    requests = TaskResourceRequests().cpus(cpus).resource(gpu_resource_name, gpus)
    return ResourceProfileBuilder().require(requests).build


@contextlib.contextmanager
def _tagged(context: Any, tag: str, description: str) -> Iterator[None]:
    """A way to cancel this job alone, and a name for it on Spark's web page."""
    before = context.getLocalProperty("spark.job.description")
    context.addJobTag(tag)
    context.setJobDescription(description)
    try:
        yield
    finally:
        context.setJobDescription(before)
        context.removeJobTag(tag)


def run_on_driver(
    assignment: Assignment, threads: int, gpus: int | None, hang_up: Callable[[], None]
) -> Values:
    """Every task as a process of this machine; what each of them returned.

    `hang_up` breaks the connection to the tasks, which ends them.
    """
    count = len(assignment.tasks)
    addresses = [""] * count
    all_there = threading.Barrier(count)

    def run_here(number: int) -> bytes | None:
        def gather(address: str) -> Sequence[str]:
            addresses[number] = address
            all_there.wait(_START_SECONDS)
            return addresses

        place = TaskPlacement(number, "127.0.0.1", threads, () if gpus == 0 else None)
        try:
            return run_task(assignment, place, gather)
        except BaseException:
            all_there.abort()
            raise

    with ThreadPoolExecutor(count, "phalanx-task") as pool:
        running = [pool.submit(run_here, number) for number in range(count)]
        try:
            return [each.result() for each in running]
        except BaseException:
            hang_up()
            raise
