"""tf.contrib.distribute: the strategies of `tf.distribute`, with the arguments of 2018."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from phalanx.errors import ConfigurationError

AllReduceCrossDeviceOps = tf.distribute.HierarchicalCopyAllReduce
OneDeviceStrategy = tf.distribute.OneDeviceStrategy
get_cross_tower_context = tf.distribute.get_strategy
get_tower_context = tf.distribute.get_replica_context
has_distribution_strategy = tf.distribute.has_strategy


class DistributeConfig(NamedTuple):
    """The strategies of a `RunConfig(experimental_distribute=...)`."""

    train_distribute: Any = None
    eval_distribute: Any = None
    remote_cluster: Any = None


def MirroredStrategy(  # noqa: N802 - the name of a class
    devices: Sequence[str] | None = None,
    num_gpus: int | None = None,
    num_gpus_per_worker: int | None = None,
    cross_device_ops: Any = None,
    cross_tower_ops: Any = None,
    auto_shard_dataset: bool = False,
) -> Any:
    """Return a `tf.distribute.MirroredStrategy`.

    Args:
        devices: The devices; by default all GPUs, or the CPU.
        num_gpus: The number of GPUs, instead of `devices`.
        num_gpus_per_worker: Another name of `num_gpus`.
        cross_device_ops: How gradients are summed.
        cross_tower_ops: Another name of `cross_device_ops`.
        auto_shard_dataset: Not used.

    Returns:
        The strategy.
    """
    count = num_gpus or num_gpus_per_worker
    if devices is not None and count:
        raise ValueError("MirroredStrategy: both devices and num_gpus are set: set one of them")
    found = len(tf.config.experimental.list_physical_devices("GPU"))
    if count and count > found:
        raise ConfigurationError(
            f"MirroredStrategy: num_gpus is {count}, but this machine has {found} GPUs: set a "
            'smaller number, or name devices such as ["/cpu:0", "/cpu:1"]'
        )
    if count:
        devices = [f"/gpu:{number}" for number in range(count)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops or cross_tower_ops)


def ParameterServerStrategy(num_gpus_per_worker: int = 0) -> Any:  # noqa: N802
    """Return a `tf.distribute.experimental.ParameterServerStrategy` by TF_CONFIG.

    Args:
        num_gpus_per_worker: Not used: a worker uses the GPUs that it sees.

    Returns:
        The strategy.
    """
    return tf.distribute.experimental.ParameterServerStrategy()


def CollectiveAllReduceStrategy(num_gpus_per_worker: int = 0) -> Any:  # noqa: N802
    """Return a `tf.distribute.experimental.MultiWorkerMirroredStrategy` by TF_CONFIG.

    Args:
        num_gpus_per_worker: Not used: a worker uses the GPUs that it sees.

    Returns:
        The strategy.
    """
    return tf.distribute.experimental.MultiWorkerMirroredStrategy()
