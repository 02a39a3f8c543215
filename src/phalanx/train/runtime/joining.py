"""Joining a cluster, which TensorFlow must do before it makes its first tensor."""

import contextlib
import faulthandler
import logging
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import NoReturn

import tensorflow as tf

from phalanx import join_on_import
from phalanx.cluster import detect
from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig
from phalanx.train.console import explain_errors, show_log
from phalanx.train.runtime.connections import Connections
from phalanx.train.runtime.control_channel import ControlChannel
from phalanx.train.runtime.peers import accept_connections, wait_for_peers
from phalanx.train.runtime.topology import (
    Strategy,
    Topology,
    find_devices,
    join_all_reduce_strategy,
    ps_jobs,
    resolve_topology,
)
from phalanx.train.types import TFStrategy

LOG = logging.getLogger("phalanx")


# A process is in one cluster, from when it joins until it ends.
_channel: ControlChannel | None = None
_tf_strategy: TFStrategy = None


def open_channel(topology: Topology) -> ControlChannel:
    """Return the control channel of this process, open unless the process is alone."""
    global _channel  # noqa: PLW0603
    if topology.strategy is Strategy.ONE_PROCESS:
        return ControlChannel()
    if _channel is None:
        _channel = ControlChannel()
        _channel.open(topology.cluster, topology.task)
        Connections(topology.cluster, topology.task, topology.strategy.has_ps).watch()
    return _channel


def must_join(topology: Topology) -> bool:
    """Whether this process has to join its cluster, as trainers do; servers need not."""
    if topology.strategy.has_ps:
        return topology.is_chief
    return topology.strategy is Strategy.ALL_REDUCE and topology.task in topology.trainers


def join(topology: Topology, wait_seconds: float) -> TFStrategy:
    """Join the cluster as a trainer, or as the chief of parameter servers; only once."""
    global _tf_strategy  # noqa: PLW0603
    if _tf_strategy is None:
        join_on_import.cancel()
        open_channel(topology)
        _tf_strategy = _join(topology, wait_seconds)
    return _tf_strategy


def _join(topology: Topology, wait_seconds: float) -> TFStrategy:
    if topology.strategy.has_ps:
        wait_for_peers(topology, wait_seconds)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(ps_jobs(topology.cluster)),
            task_type="chief",
            task_id=0,
            rpc_layer="grpc",
        )
        with _exit_after(wait_seconds):
            return tf.distribute.ParameterServerStrategy(resolver)
    with accept_connections(topology.cluster, topology.task):
        wait_for_peers(topology, wait_seconds)
    with _exit_after(wait_seconds):
        return join_all_reduce_strategy(topology, wait_seconds)


@contextlib.contextmanager
def _exit_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer, with the stacks of its threads.

    TensorFlow waits without a limit for a peer that accepts connections and never answers, and
    keeps all other threads of Python from running meanwhile. Only faulthandler's does not need it.
    """
    LOG.info("joining the cluster: a peer that does not answer is given up after %.0f s", seconds)
    try:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    except (ValueError, AttributeError, OSError, RuntimeError):
        # Without a standard error, nobody could read why the process ended.
        yield
        return
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def join_trainers(topology: Topology, config: RunConfig) -> tuple[TFStrategy, list[str]]:
    """Return the strategy of one process or of all-reduce, and this host's devices."""
    if topology.strategy is Strategy.ALL_REDUCE:
        tf_strategy = join(topology, config.wait_seconds)
        return tf_strategy, list(tf_strategy.extended.worker_devices)
    devices = find_devices(config)
    if len(devices) > 1:
        return _mirror(tuple(devices)), devices
    return tf.distribute.get_strategy(), devices


@cache
def _mirror(devices: tuple[str, ...]) -> TFStrategy:
    # A second strategy would number its collective operations like the first, which have other
    # shapes.
    return tf.distribute.MirroredStrategy(devices)


def join_with_model(topology: Topology, wait_seconds: float) -> None:
    """Make sure that the process has joined, although its program has made a model already.

    A process cannot keep its tensors when it joins. So the program is started again, and joins
    before it makes tensors.
    """
    if _tf_strategy is None and must_join(topology):
        _restart(wait_seconds)


def _restart(wait_seconds: float) -> NoReturn:
    if join_on_import.was_requested():
        raise ConfigurationError(
            "TensorFlow was used before this process joined its cluster: write `import phalanx` at "
            "the top of the program, before anything that uses TensorFlow or Keras"
        )
    if not _can_restart():
        raise ConfigurationError(
            "TensorFlow was used before this process joined its cluster, and a program from "
            "standard input or an interactive session cannot be started again: write it to a file"
        )
    LOG.info("starting the program again, to join the cluster before TensorFlow makes tensors")
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(join_on_import.directory)
    os.environ[join_on_import.VARIABLE] = str(wait_seconds)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _can_restart() -> bool:
    """Whether the command line has the whole program: a file, a module or `-c`."""
    main = sys.modules["__main__"]
    return hasattr(main, "__file__") or "-c" in sys.orig_argv[1:]


def join_early(wait_seconds: float | None) -> None:
    """Join the cluster of this process, before its program makes tensors."""
    explain_errors()
    show_log()
    config = RunConfig.parse_known()
    if wait_seconds is not None:
        config = config.replace(wait_seconds=wait_seconds)
    topology = resolve_topology(detect(), config)
    if must_join(topology):
        join(topology, config.wait_seconds)
