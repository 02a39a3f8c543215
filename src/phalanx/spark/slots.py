"""Spark's task slots: a job that does not fit fails within seconds instead of waiting for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.errors import JobError

if TYPE_CHECKING:
    from pyspark import SparkContext

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class SparkSlots:
    """How many tasks Spark can run at once, and how many more it could start now."""

    total: int
    free: int


def count_slots(
    spark_context: SparkContext, gpus: int = 0, gpu_resource_name: str = "gpu"
) -> SparkSlots:
    """Count the slots of all executors for tasks with so many GPUs."""
    # No public API tells what an executor can run; this is the source of Spark's web UI.
    executors = spark_context._jsc.sc().statusStore().executorList(True)
    master = spark_context.master
    is_local = master.startswith("local") and "local-cluster" not in master
    total = free = 0
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
    return SparkSlots(total, free)


def wait_for_slots(
    needed: int,
    tasks: str,
    count: Callable[[], SparkSlots],
    seconds: float,
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
            raise too_few_slots(needed, tasks, slots)
        sleep(_POLL_SECONDS)


def too_few_slots(needed: int, tasks: str, slots: SparkSlots) -> JobError:
    """Return the error for tasks that do not fit into the free slots."""
    remedy = (
        "wait until other jobs are done, or ask for fewer tasks"
        if slots.total >= needed
        else "ask for fewer tasks, or give Spark more executors or cores (spark.executor.cores, "
        "spark.task.cpus)"
    )
    return JobError(
        f"{tasks} need {needed} slots at the same time, but {slots.free} of Spark's {slots.total} "
        f"are free: {remedy}"
    )
