"""For programs written for spark-tensorflow-distributor."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx.cluster.detect import detect
from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.job import make_tasks
from phalanx.spark.runner import Function, SparkJob, run_function
from phalanx.spark.stage import find_session


@dataclass(frozen=True, kw_only=True)
class MirroredStrategyRunner:
    """Runs a function on several Spark tasks at once, under a strategy of TensorFlow.

        def train(batch_size):
            model = make_model()
            ...

        MirroredStrategyRunner(num_slots=8).run(train, batch_size=64)

    The function is called in the scope of a `MultiWorkerMirroredStrategy`, which it can get with
    `tf.distribute.get_strategy()`. Keras 3 models train in custom loops: their `fit` does not
    support a strategy with several processes. For that, write an Experiment and use
    `phalanx.spark.run`.

    Args:
        num_slots: The number of GPUs in all or, without `use_gpu`, the number of tasks.
        local_mode: Call the function once, on the driver's machine, under a `MirroredStrategy`.
        use_gpu: Whether the tasks use GPUs.
        gpu_resource_name: Spark's name for GPUs.
        use_custom_strategy: Whether the function creates a strategy by itself, from TF_CONFIG.
    """

    num_slots: int
    local_mode: bool = False
    use_gpu: bool = True
    gpu_resource_name: str = "gpu"
    use_custom_strategy: bool = False

    def __post_init__(self) -> None:
        if self.num_slots < 1:
            raise JobError(f"num_slots is {self.num_slots}: it must be at least 1")

    def run(self, train_fn: Function, **kwargs: Any) -> Any:
        """Call the function on every task.

        Args:
            train_fn: The function.
            **kwargs: Its arguments.

        Returns:
            What the function has returned on the first task.
        """
        job = SparkJob(
            tuple(make_tasks({Role.WORKER: self._count_tasks()})),
            local_mode=self.local_mode,
            gpus_per_task=None if self.use_gpu else 0,
            gpu_resource_name=self.gpu_resource_name,
        )
        return run_function(partial(self._call, partial(train_fn, **kwargs)), job)

    def _count_tasks(self) -> int:
        if self.local_mode:
            return 1
        if not self.use_gpu:
            return self.num_slots
        setting = f"spark.task.resource.{self.gpu_resource_name}.amount"
        amount = find_session().sparkContext.getConf().get(setting)
        if amount is None or float(amount) < 1:
            raise JobError(
                f"use_gpu is True, but {setting} is {'not set' if amount is None else amount}: "
                "start Spark with GPUs for its tasks, at least one each, or set use_gpu=False"
            )
        return math.ceil(self.num_slots / int(float(amount)))

    def _call(self, function: Function) -> Any:
        """Call the function on a task, in the scope of a strategy unless it creates its own."""
        if self.use_gpu and not self.local_mode:
            _limit_gpus(self.num_slots)
        import tensorflow as tf  # noqa: PLC0415

        if self.local_mode and self.use_gpu:
            gpus = tf.config.list_physical_devices("GPU")
            if len(gpus) < self.num_slots:
                raise JobError(
                    f"num_slots is {self.num_slots}, but this machine has {len(gpus)} GPUs: take "
                    "fewer, or set use_gpu=False"
                )
            tf.config.set_visible_devices(gpus[: self.num_slots], "GPU")
        if self.use_custom_strategy:
            return function()
        distribute = tf.distribute
        local, multi = distribute.MirroredStrategy, distribute.MultiWorkerMirroredStrategy
        strategy = local() if self.local_mode else multi()
        with strategy.scope():
            return function()


def count_gpus(num_slots: int, tasks: int, index: int) -> int:
    """Return how many of the requested GPUs the task with this index uses."""
    return num_slots // tasks + (index < num_slots % tasks)


def _limit_gpus(num_slots: int) -> None:
    """Hide the GPUs beyond `num_slots`: Spark assigns the same number to every task."""
    tf_config = detect()
    count = count_gpus(num_slots, len(tf_config.cluster.tasks()), tf_config.task.index)
    assigned = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(assigned[:count])
