"""Runs the tasks of a job in a barrier stage, once Spark has enough free slots, or locally."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.cluster.spec import split_address
from phalanx.errors import JobError
from phalanx.spark.barrier_context import describe_context
from phalanx.spark.task import Assignment, TaskPlacement, map_gpus, run_task

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Values = Sequence[bytes | None]

# The name of this setting in spark-tensorflow-distributor.
_IGNORE_SSL = "tensorflow.spark.distributor.ignore_ssl"

_START_SECONDS = 120.0
_POLL_SECONDS = 0.5


def find_session(spark: SparkSession | None = None) -> SparkSession:
    """Return this session, or the active one; raise a JobError if it has no barrier stages."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise JobError("PySpark is not installed: pip install 'phalanx[spark]'") from None
    spark = spark or SparkSession.getActiveSession()
    if spark is None:
        raise JobError(
            "there is no Spark session: create one with SparkSession.builder.getOrCreate(), or use "
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


def check_encryption(spark: SparkSession) -> None:
    """Raise a JobError if the user expects encrypted connections: TensorFlow has none."""
    is_encrypted = spark.conf.get("spark.ssl.enabled", "false") == "true"
    if is_encrypted and spark.conf.get(_IGNORE_SSL, "false") != "true":
        raise JobError(
            "spark.ssl.enabled is true, but the connections between the tasks of TensorFlow are "
            f"not encrypted: set {_IGNORE_SSL} to true to train all the same"
        )


def run_on_spark(
    spark: SparkSession, assignment: Assignment, tag: str, gpus: int | None, gpu_resource_name: str
) -> Values:
    """Run a barrier stage with one Spark task for each task; return the value of each."""
    context = spark.sparkContext
    count = len(assignment.tasks)

    def run_partition(rows: Iterable[int]) -> Iterator[bytes | None]:
        from pyspark import BarrierTaskContext  # noqa: PLC0415

        barrier = BarrierTaskContext.get()
        index = barrier.partitionId()
        host, _ = split_address(barrier.getTaskInfos()[index].address)
        resource = barrier.resources().get(gpu_resource_name)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        assigned = map_gpus(resource.addresses, visible) if resource else None
        # GPUs that Spark does not manage stay visible, unless none are asked for.
        assigned = () if gpus == 0 else assigned
        placement = TaskPlacement(index, host, barrier.cpus(), assigned, describe_context(barrier))
        yield run_task(assignment, placement, barrier.allGather)

    rdd = context.parallelize(range(count), count)
    conf = context.getConf()
    configured = conf.get(f"spark.task.resource.{gpu_resource_name}.amount", "0")
    if gpus and gpus != float(configured):
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests  # noqa: PLC0415

        requests = TaskResourceRequests().cpus(int(conf.get("spark.task.cpus", "1")))
        requests = requests.resource(gpu_resource_name, gpus)
        rdd = rdd.withResources(ResourceProfileBuilder().require(requests).build)
    with _tagged(context, tag, f"phalanx: {', '.join(map(str, assignment.tasks))}"):
        return list(rdd.barrier().mapPartitions(run_partition).collect())


@contextlib.contextmanager
def _tagged(context: SparkContext, tag: str, description: str) -> Iterator[None]:
    """Tag the job, so that it can be cancelled alone, and describe it in Spark's web UI."""
    before = context.getLocalProperty("spark.job.description")
    context.addJobTag(tag)
    context.setJobDescription(description)
    try:
        yield
    finally:
        context.setJobDescription(before)
        context.removeJobTag(tag)


def run_on_driver(
    assignment: Assignment, threads: int, gpus: int | None, disconnect: Callable[[], None]
) -> Values:
    """Run every task as a process of this machine; return the value of each.

    `disconnect` closes the connections to the tasks, which ends them.
    """
    count = len(assignment.tasks)
    addresses = [""] * count
    barrier = threading.Barrier(count)

    def run_one(index: int) -> bytes | None:
        def gather(address: str) -> Sequence[str]:
            addresses[index] = address
            barrier.wait(_START_SECONDS)
            return addresses

        placement = TaskPlacement(index, "127.0.0.1", threads, () if gpus == 0 else None)
        try:
            return run_task(assignment, placement, gather)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count, "phalanx-task") as pool:
        running = [pool.submit(run_one, index) for index in range(count)]
        try:
            return [each.result() for each in running]
        except BaseException:
            disconnect()
            raise


@dataclass(frozen=True)
class SparkSlots:
    """How many tasks Spark can run at once, and how many more it could start now."""

    total: int
    free: int
    executors: int


def count_slots(context: SparkContext, gpus: int = 0, gpu_resource_name: str = "gpu") -> SparkSlots:
    # No public API tells what an executor can run; this is the source of Spark's web UI.
    executors = context._jsc.sc().statusStore().executorList(True)
    is_local = context.master.startswith("local") and "local-cluster" not in context.master
    total = free = started = 0
    for index in range(executors.size()):
        executor = executors.apply(index)
        if executor.id() == "driver" and not is_local:
            continue
        slots = int(executor.maxTasks())
        if gpus:
            found = executor.resources().get(gpu_resource_name)
            held = len(found.get().addresses()) if found.isDefined() else 0
            slots = min(slots, held // gpus)
        total += slots
        free += max(0, slots - int(executor.activeTasks()))
        started += 1
    return SparkSlots(total, free, started)


def wait_for_slots(
    needed: int,
    tasks: str,
    count: Callable[[], SparkSlots],
    seconds: float,
    gpus: int = 0,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the tasks can start; raise a JobError if they cannot within so many seconds.

    Executors may still be starting, and other jobs may be about to end.
    """
    deadline = clock() + seconds
    while (slots := count()).free < needed:
        if clock() >= deadline:
            raise too_few_slots(needed, tasks, slots, gpus)
        sleep(_POLL_SECONDS)


def too_few_slots(needed: int, tasks: str, slots: SparkSlots, gpus: int = 0) -> JobError:
    if not slots.executors:
        return JobError(
            f"{tasks} need {needed} slots at the same time, but no executor of Spark has started: "
            "check that the cluster starts them, or wait longer (wait_seconds)"
        )
    if gpus and not slots.total:
        return JobError(
            f"gpus_per_task is {gpus}, but no executor of Spark has so many GPUs: ask for fewer, "
            "or start Spark with spark.executor.resource.gpu.amount"
        )
    remedy = "wait until other jobs are done, or ask for fewer tasks"
    if slots.total < needed:
        settings = "(spark.executor.cores, spark.task.cpus)"
        remedy = f"ask for fewer tasks, or give Spark more executors or cores {settings}"
    found = f"{slots.free} of Spark's {slots.total} are free"
    return JobError(f"{tasks} need {needed} slots at the same time, but {found}: {remedy}")
