"""For programs written for spark-tensorflow-distributor."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from phalanx.cluster.detect import detect
from phalanx.cluster.spec import Role
from phalanx.errors import ArgumentError, JobError
from phalanx.launch.job import make_tasks
from phalanx.spark.runner import Function, SparkJob, run_function
from phalanx.spark.stage import find_session

if TYPE_CHECKING:
    from pyspark import SparkContext


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
        if not isinstance(self.num_slots, int) or self.num_slots < 1:
            raise ArgumentError(f"num_slots is {self.num_slots!r}: it must be a number from 1 on")

    @property
    def sc(self) -> SparkContext:
        """The context of the Spark session."""
        return find_session().sparkContext

    def get_num_tasks(self) -> int:
        """Return the number of Spark tasks that run the function.

        Raises:
            ArgumentError: Spark assigns no GPUs to its tasks, and `use_gpu` is set.
        """
        if self.local_mode or not self.use_gpu:
            return 1 if self.local_mode else self.num_slots
        setting = f"spark.task.resource.{self.gpu_resource_name}.amount"
        amount = self.sc.getConf().get(setting)
        if amount is None or float(amount) < 1:
            fix = "start Spark with GPUs for its tasks, at least one each, or set use_gpu=False"
            raise ArgumentError(f"use_gpu is True, but {setting} is {amount or 'not set'}: {fix}")
        return math.ceil(self.num_slots / int(float(amount)))

    def run(self, train_fn: Function, **kwargs: Any) -> Any:
        """Call the function on every task.

        Args:
            train_fn: The function.
            **kwargs: Its arguments.

        Returns:
            What the function has returned on the first task.
        """
        tasks = tuple(make_tasks({Role.WORKER: self.get_num_tasks()}))
        gpus = None if self.use_gpu else 0
        environment = self._choose_driver_gpus()
        job = SparkJob(tasks, self.local_mode, gpus, self.gpu_resource_name, environment)
        return run_function(partial(self._call, partial(train_fn, **kwargs)), job)

    def _choose_driver_gpus(self) -> dict[str, str]:
        """Return the variable that shows the function the GPUs that Spark gave to the driver."""
        if not (self.local_mode and self.use_gpu):
            return {}
        found = _find_driver_gpus(self.gpu_resource_name)
        if found is None:
            return {}
        if len(found) < self.num_slots:
            raise ArgumentError(
                f"num_slots is {self.num_slots}, but Spark's driver has {len(found)} GPUs: take "
                "fewer, or set use_gpu=False"
            )
        return {"CUDA_VISIBLE_DEVICES": ",".join(found[: self.num_slots])}

    def _call(self, function: Function) -> Any:
        """Call the function on a task, in the scope of a strategy unless it creates its own."""
        if self.use_gpu and not self.local_mode:
            _limit_gpus(self.num_slots)
        import tensorflow as tf  # noqa: PLC0415

        if self.local_mode and self.use_gpu:
            gpus = tf.config.list_physical_devices("GPU")
            if len(gpus) < self.num_slots:
                found = f"num_slots is {self.num_slots}, but this machine has {len(gpus)} GPUs"
                raise JobError(f"{found}: take fewer, or set use_gpu=False")
            tf.config.set_visible_devices(gpus[: self.num_slots], "GPU")
        if self.use_custom_strategy:
            return function()
        name = "MirroredStrategy" if self.local_mode else "MultiWorkerMirroredStrategy"
        with getattr(tf.distribute, name)().scope():
            try:
                return function()
            except (TypeError, ValueError) as error:
                if "PerReplica" in str(error):
                    raise JobError(
                        f"fit of Keras 3 does not train under a {name}: write a loop with "
                        "strategy.run, or use phalanx.spark.run with an Experiment"
                    ) from None
                raise


def count_gpus(num_slots: int, tasks: int, index: int) -> int:
    """Return how many of the requested GPUs the task with this index uses."""
    return num_slots // tasks + (index < num_slots % tasks)


def _find_driver_gpus(resource_name: str) -> list[str] | None:
    """Return the GPUs that Spark gave to the driver; None if it manages none, or does not run."""
    try:
        resource = find_session().sparkContext.resources.get(resource_name)
    except JobError:
        return None
    return None if resource is None else list(resource.addresses)


def _limit_gpus(num_slots: int) -> None:
    """Hide the GPUs beyond `num_slots`: Spark assigns the same number to every task."""
    tf_config = detect()
    count = count_gpus(num_slots, len(tf_config.cluster.tasks()), tf_config.task.index)
    assigned = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(assigned[:count])
