"""How many tasks Spark can run at once, so that a job that cannot start is told so in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.errors import JobError

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class SparkSlots:
    """How many tasks fit, and how many of them could start now."""

    total: int
    free: int


def count_slots(spark_context: Any, gpus: int = 0, gpu_resource_name: str = "gpu") -> SparkSlots:
    """The slots of all executors that are there."""
    # No public name tells what an executor can run: this is what Spark's own web page reads.
    executors = spark_context._jsc.sc().statusStore().executorList(True)
    is_local = spark_context.master.startswith("local") and "local-cluster" not in (
        spark_context.master
    )
    total = free = 0
    for number in range(executors.size()):
        executor = executors.apply(number)
        if executor.id() == "driver" and not is_local:
            continue
        most = int(executor.maxTasks())
        if gpus:
            found = executor.resources().get(gpu_resource_name)
            held = len(found.get().addresses()) if found.isDefined() else 0
            most = min(most, held // gpus)
        total += most
        free += max(0, most - int(executor.activeTasks()))
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
    """Return as soon as the tasks can start; a JobError if they cannot within so many seconds.

    Executors may still be starting, and other jobs may be about to end.
    """
    deadline = clock() + seconds
    while (slots := count()).free < needed:
        if clock() >= deadline:
            raise too_few(needed, tasks, slots)
        sleep(_LOOK_SECONDS)


def too_few(needed: int, tasks: str, slots: SparkSlots) -> JobError:
    """What there is, and what to do."""
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
