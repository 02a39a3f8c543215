"""The TensorFlow server of a task whose program builds a graph and runs it in sessions.

Every trainer runs its own loop over variables on the parameter servers (between-graph replication).
A parameter server ends when the last trainer has ended.
"""

import atexit
import logging
import sys
import time

import tensorflow as tf

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.cluster.preflight import check_peers
from phalanx.errors import Interrupted, PeerError
from phalanx.train.runtime.control_channel import ControlChannel, is_listening, send
from phalanx.train.runtime.exposure import check_guard
from phalanx.train.runtime.messages import Message, MessageType
from phalanx.train.runtime.signals import catch_sigterm
from phalanx.train.types import Server, UserFunction

LOG = logging.getLogger("phalanx")

_WAIT_SECONDS = 300.0
_LOST_SECONDS = 60.0
_PROBE_SECONDS = 2.0

# A TensorFlow server cannot be stopped: it lives as long as the process.
_SERVERS: list[Server] = []


def job_of(task: Task) -> str:
    """Return the name of a task's job in graphs, where the chief is called the master."""
    return "master" if task.role is Role.CHIEF else str(task.role)


def device_of(task: Task) -> str:
    return f"/job:{job_of(task)}/task:{task.index}"


def make_device_setter(config: TFConfig) -> UserFunction:
    """Return a function for `tf.device`: variables are on the ps, all else is on this task."""
    setter: UserFunction = tf.compat.v1.train.replica_device_setter(
        worker_device=device_of(config.task), cluster=_make_cluster_spec(config.cluster)
    )
    return setter


def start_server(config: TFConfig) -> str:
    """Start the server of a trainer, and return the target for sessions.

    At the end of its program, the trainer tells the parameter servers that it is done.
    """
    check_guard()
    server = _start_server(config)
    atexit.register(_announce_end, config)
    return str(server.target)


def _start_server(config: TFConfig) -> Server:
    server = tf.distribute.Server(
        _make_cluster_spec(config.cluster),
        job_name=job_of(config.task),
        task_index=config.task.index,
    )
    _SERVERS.append(server)
    return server


def wait_for_peers(config: TFConfig) -> None:
    """Wait for the parameter servers and the master; the master waits for the workers, too.

    Otherwise a master that is done soon would leave without the workers that start late.
    """
    others = set(config.cluster.tasks(Role.PS)) | {config.cluster.chief()}
    needed = set(config.cluster.addresses) if config.is_chief() else others | {config.task}
    addresses = {task: config.cluster.addresses[task] for task in needed}
    peers = TFConfig(Cluster(addresses), config.task)
    silent = [r for r in check_peers(peers, timeout=_WAIT_SECONDS, wait=True) if r.reason]
    if silent:
        names = "; ".join(map(str, silent))
        raise PeerError(f"gave up after {_WAIT_SECONDS:.0f} s waiting for {names}")


def serve(config: TFConfig) -> None:
    """Serve variables until every trainer is done."""
    channel = ControlChannel()
    channel.open(config.cluster, config.task)
    _start_server(config)
    name, addresses = str(config.task), config.cluster.addresses
    LOG.info("%s serves at %s", name, addresses[config.task])
    training = {str(task): addresses[task] for task in config.cluster.trainers()}
    was_seen = is_any_done = False
    last_seen = time.monotonic()
    with catch_sigterm() as stop:
        while training:
            message = channel.wait(_PROBE_SECONDS)
            if stop():
                raise Interrupted(f"{name} received SIGTERM")
            now = time.monotonic()
            if message is not None:
                is_any_done |= training.pop(message.sender, None) is not None
            elif any(map(is_listening, training.values())):
                was_seen, last_seen = True, now
            elif now - last_seen > (_LOST_SECONDS if was_seen else _WAIT_SECONDS):
                if is_any_done:
                    break
                raise PeerError(f"no trainer responds to {name}: {', '.join(training)}")
    # The last sender still needs this server for its reply.
    time.sleep(0.3)
    LOG.info("the trainers of %s are done", name)


def _announce_end(config: TFConfig) -> None:
    if hasattr(sys, "last_value"):  # An error ends this program, and a restart may follow.
        return
    done = Message(MessageType.DONE, str(config.task))
    for ps in config.cluster.tasks(Role.PS):
        send(config.cluster, [ps], done, has_ps=False)


def _make_cluster_spec(cluster: Cluster) -> tf.train.ClusterSpec:
    jobs: dict[str, dict[int, str]] = {}
    for task, address in cluster.addresses.items():
        jobs.setdefault(job_of(task), {})[task.index] = address
    return tf.train.ClusterSpec(jobs)
