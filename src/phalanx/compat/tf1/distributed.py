"""TensorLayer's module `distributed`: loops over a TensorFlow 1 graph, on parameter servers.

    task_spec = TaskSpec()
    task_spec.create_server()
    with tf.device(task_spec.device_fn()):
        tensors = create_graph()
    with DistributedSession(task_spec, checkpoint_dir="runs/graph") as session:
        while not session.should_stop():
            session.run(tensors, feed_dict=...)

`phalanx.DistributedSession` is the session for programs without a graph.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import tensorflow.compat.v1 as tf

from phalanx.cluster import TFConfig, detect
from phalanx.compat.tf1.session import STOP_GRACE_SECONDS
from phalanx.compat.tf1.train import MonitoredTrainingSession
from phalanx.errors import ClusterError, ConfigurationError
from phalanx.train.custom_loop import task_spec as custom_loop
from phalanx.train.runtime.control_channel import is_listening

LOG = logging.getLogger("phalanx")

_DEFAULT = object()
_POLL_SECONDS = 2.0
# TensorLayer's evaluators look for checkpoints every 30 s.
_IDLE_SECONDS = 50.0
_IDLE_LOAD = 0.02
_watching = threading.Lock()


class TaskSpecDef(custom_loop.TaskSpecDef):
    """One task and its cluster, described by arguments, for programs that build a graph.

    Args:
        task_type: The role of this task: `master`, `worker` or `ps`.
        index: The index of this task within its role.
        trial: The number of the trial, for hyperparameter searches.
        ps_hosts: The addresses of the parameter servers, as a list or separated by commas.
        worker_hosts: The addresses of the workers.
        master: The address of the master, if it is not one of the workers.
    """

    @classmethod
    def of(cls, config: TFConfig) -> Self:
        """Return the task spec of a TF_CONFIG. The process of an evaluator ends after training."""
        spec = super().of(config)
        addresses = list(config.cluster.without_evaluators().addresses.values())
        if spec.is_evaluator() and addresses and _watching.acquire(blocking=False):
            threading.Thread(target=_end_after_training, args=(addresses,), daemon=True).start()
        return spec

    def target(self) -> str | None:
        """Return the target of this task's sessions, or None without a cluster."""
        if self.num_workers > 1 and not self.num_ps and not self.is_evaluator():
            raise ClusterError(
                f"{self.num_workers} tasks train a graph together, but there is no parameter "
                "server to hold its variables: add one (phalanx run --ps 1)"
            )
        return super().target()

    def _builds_graph(self) -> bool:
        return True


def TaskSpec(  # noqa: N802 - people know it as a class
    environ: Mapping[str, str] | None = None,
) -> TaskSpecDef:
    """Return this process's task, from TF_CONFIG or JOB_NAME, TASK_INDEX, PS_HOSTS, and so on.

    Args:
        environ: The environment; by default that of this process.

    Returns:
        The task spec. If nothing is set, it is that of a single process, which is its own master.
    """
    return TaskSpecDef.of(detect(environ))


def DistributedSession(  # noqa: N802 - people know it as a class
    task_spec: custom_loop.TaskSpecDef | None = None,
    checkpoint_dir: str | None = None,
    scaffold: Any = None,
    hooks: Sequence[Any] | None = None,
    chief_only_hooks: Sequence[Any] | None = None,
    save_checkpoint_secs: float | None = 600,
    save_summaries_steps: Any = _DEFAULT,
    save_summaries_secs: Any = _DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = STOP_GRACE_SECONDS,
    log_step_count_steps: int | None = 100,
) -> Any:
    """Return a `MonitoredSession` for this task, whose `run(tensors, feed_dict)` runs the graph.

    The master initializes or restores the variables, saves them and writes summaries. The other
    tasks wait for it. A task that loses a parameter server or the master restores its session.

    Args:
        task_spec: This process's task. By default, a single process.
        checkpoint_dir: Where the master saves, and from where it restores.
        scaffold: A `tf.train.Scaffold`.
        hooks: Session hooks for every task.
        chief_only_hooks: Session hooks for the master only.
        save_checkpoint_secs: Save a checkpoint every so many seconds; None: never.
        save_summaries_steps: Write summaries every so many steps; by default 100.
        save_summaries_secs: Write summaries every so many seconds.
        config: The `tf.ConfigProto` of the session. Device filters are added if it has none.
        stop_grace_period_secs: How long threads may take to end.
        log_step_count_steps: Log the speed every so many steps.

    Returns:
        The session, for a `with` statement.

    Raises:
        ConfigurationError: If this task is the evaluator, or the program runs eagerly.
        ClusterError: If several tasks train without a parameter server.
    """
    _check_use(task_spec)
    is_master = task_spec is None or task_spec.is_master()
    target = (task_spec.target() if task_spec is not None else None) or ""
    given = list(hooks or ())
    for hook in given:
        if isinstance(hook, LoadCheckpoint):
            hook.begins_run = True
    if not is_master:
        # The master has loaded the checkpoint; a late worker would undo what was trained since.
        given = [hook for hook in given if not isinstance(hook, LoadCheckpoint)]
    summaries = {
        "save_summaries_steps": save_summaries_steps,
        "save_summaries_secs": save_summaries_secs,
    }
    return MonitoredTrainingSession(
        master=target,
        is_chief=is_master,
        checkpoint_dir=checkpoint_dir,
        scaffold=scaffold,
        hooks=given,
        chief_only_hooks=list(chief_only_hooks or ()),
        save_checkpoint_secs=save_checkpoint_secs,
        config=_add_device_filters(config, task_spec) if target else config,
        stop_grace_period_secs=stop_grace_period_secs,
        log_step_count_steps=log_step_count_steps,
        **{name: value for name, value in summaries.items() if value is not _DEFAULT},
    )


class StopAtTimeHook(tf.train.SessionRunHook):
    """Ends the session of this task after a time.

    Args:
        time_running: The seconds from the creation of the session.
    """

    def __init__(self, time_running: float) -> None:
        self._time_running = time_running
        self._end_time = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self._end_time = time.monotonic() + self._time_running

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Request the end when the time is up."""
        if time.monotonic() > self._end_time:
            run_context.request_stop()


class LoadCheckpoint(tf.train.SessionRunHook):
    """Loads a checkpoint after a session is created, as in fine-tuning and evaluation.

    In a `DistributedSession`, only the master loads it, and only when training begins: after a
    restart, the run goes on from its own checkpoint.

    Args:
        saver: A `tf.train.Saver` of the variables to load.
        checkpoint: The path of the checkpoint.
    """

    def __init__(self, saver: Any, checkpoint: str) -> None:
        self._saver = saver
        self._checkpoint = checkpoint
        self._is_loaded = False
        self.begins_run = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Load the checkpoint, once."""
        step = tf.train.get_global_step()
        was_restored = self.begins_run and step is not None and session.run(step) > 0
        if not self._is_loaded and not was_restored:
            self._saver.restore(session, self._checkpoint)
        self._is_loaded = True


def _end_after_training(addresses: Sequence[str]) -> None:
    """End this process when training is over: the loops of evaluators go on until they are killed.

    Args:
        addresses: The addresses of the trainers and the parameter servers.
    """
    _wait_for_end(addresses, _IDLE_SECONDS)
    LOG.info("training is over, and no checkpoint is left to evaluate: the evaluator ends")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _wait_for_end(
    addresses: Sequence[str], seconds: float, read_cpu: Callable[[], float] = time.process_time
) -> None:
    """Wait until no task listens any more and this process has been idle for so long."""
    was_seen = False
    last, last_cpu, busy_until = time.monotonic(), read_cpu(), time.monotonic()
    while not was_seen or time.monotonic() - busy_until < seconds:
        time.sleep(min(_POLL_SECONDS, seconds))
        now, cpu = time.monotonic(), read_cpu()
        is_listened_to = any(map(is_listening, addresses))
        was_seen |= is_listened_to
        if is_listened_to or cpu - last_cpu > _IDLE_LOAD * (now - last):
            busy_until = now
        last, last_cpu = now, cpu


def _check_use(task_spec: custom_loop.TaskSpecDef | None) -> None:
    if task_spec is not None and task_spec.is_evaluator():
        raise ConfigurationError(
            "this task is the evaluator, which does not train: restore the checkpoints in a "
            "tf.train.SingularMonitoredSession"
        )
    if tf.executing_eagerly():
        raise ConfigurationError(
            "DistributedSession of phalanx.compat.tf1 runs a graph, but eager execution is on: "
            "start the program with --tf1, call tf.disable_v2_behavior(), or use "
            "phalanx.DistributedSession"
        )


def _add_device_filters(config: Any, task_spec: custom_loop.TaskSpecDef | None) -> Any:
    """Return the settings with filters: without them, a session waits for workers that are done."""
    settings = tf.ConfigProto()
    if config is not None:
        settings.CopyFrom(config)
    if task_spec is not None and not settings.device_filters:
        own = f"/job:{task_spec.type}/task:{task_spec.index}"
        settings.device_filters.extend(["/job:ps", own])
    return settings
