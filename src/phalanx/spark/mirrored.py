"""For programs written for spark-tensorflow-distributor."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.cluster.detect import detect
from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.spark.call import Call
from phalanx.spark.runner import Where, run_call
from phalanx.spark.stage import find_session


class MirroredStrategyRunner:
    """Runs a function on several Spark tasks in step, under a strategy of TensorFlow's.

        def train(batch_size):
            model = make_model()
            ...

        MirroredStrategyRunner(num_slots=8).run(train, batch_size=64)

    `num_slots` is the number of GPUs in all (`use_gpu=True`), or the number of tasks. The function
    is called in the scope of a `MultiWorkerMirroredStrategy`, which it can get by
    `tf.distribute.get_strategy()`; with `use_custom_strategy` it makes its own, from TF_CONFIG.
    `local_mode` calls it once, on the driver's machine, under a `MirroredStrategy`.

    Keras 3 models train in loops of your own. Their `fit` works under no strategy of several
    processes: for that, write an Experiment and use `phalanx.spark.run`.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        local_mode: bool = False,
        use_gpu: bool = True,
        gpu_resource_name: str = "gpu",
        use_custom_strategy: bool = False,
    ) -> None:
        if num_slots < 1:
            raise JobError(f"num_slots is {num_slots}: it must be at least 1")
        self._num_slots = num_slots
        self._local_mode = local_mode
        self._use_gpu = use_gpu
        self._gpu_resource_name = gpu_resource_name
        self._use_custom_strategy = use_custom_strategy

    def run(self, train_fn: Callable[..., Any], **kwargs: Any) -> Any:
        """Call the function on every task; what it returns on the first is returned here."""
        call = Call(
            call_in_scope,
            {
                "function": train_fn,
                "arguments": kwargs,
                "num_slots": self._num_slots,
                "use_gpu": self._use_gpu,
                "is_local": self._local_mode,
                "makes_strategy": not self._use_custom_strategy,
            },
        )
        where = Where(
            tuple(Task(Role.WORKER, index) for index in range(self._count_tasks())),
            local_mode=self._local_mode,
            gpus_per_task=None if self._use_gpu else 0,
            gpu_resource_name=self._gpu_resource_name,
        )
        return run_call(call, where)

    def _count_tasks(self) -> int:
        if self._local_mode:
            return 1
        if not self._use_gpu:
            return self._num_slots
        setting = f"spark.task.resource.{self._gpu_resource_name}.amount"
        amount = find_session().sparkContext.getConf().get(setting)
        if amount is None or float(amount) < 1:
            raise JobError(
                f"use_gpu is True, but {setting} is {'not set' if amount is None else amount}: "
                "start Spark with GPUs for its tasks, at least one each, or set use_gpu=False"
            )
        return math.ceil(self._num_slots / int(float(amount)))


def call_in_scope(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    num_slots: int,
    use_gpu: bool,
    is_local: bool,
    makes_strategy: bool,
) -> Any:
    """What each task does: call the function, under a strategy unless it makes its own."""
    if use_gpu and not is_local:
        _take_share(num_slots)
    import tensorflow as tf  # noqa: PLC0415

    if is_local and use_gpu:
        gpus = tf.config.list_physical_devices("GPU")
        if len(gpus) < num_slots:
            raise JobError(
                f"num_slots is {num_slots}, but this machine has {len(gpus)} GPUs: take fewer, or "
                "set use_gpu=False"
            )
        tf.config.set_visible_devices(gpus[:num_slots], "GPU")
    if not makes_strategy:
        return function(**arguments)
    strategy = (
        tf.distribute.MirroredStrategy()
        if is_local
        else tf.distribute.MultiWorkerMirroredStrategy()
    )
    with strategy.scope():
        return function(**arguments)


def count_gpus(num_slots: int, tasks: int, index: int) -> int:
    """How many of all GPUs that are asked for one of the tasks uses.

    >>> [count_gpus(5, 2, index) for index in range(2)]
    [3, 2]
    """
    return num_slots // tasks + (index < num_slots % tasks)


def _take_share(num_slots: int) -> None:
    """Spark gives every task as many GPUs; TensorFlow must not see more than are asked for."""
    place = detect()
    mine = count_gpus(num_slots, len(place.cluster.tasks()), place.task.index)
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(given[:mine])
