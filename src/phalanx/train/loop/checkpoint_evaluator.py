"""Evaluate the checkpoints of a run as they come, from any process that sees its directory."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from phalanx.errors import ConfigurationError, PeerError, TrainingError
from phalanx.train.config import RunConfig
from phalanx.train.engines.all_reduce import AllReduceEngine
from phalanx.train.experiment import Experiment, experiment_name
from phalanx.train.loop import evaluation
from phalanx.train.model_dir.checkpoint import Checkpoints
from phalanx.train.model_dir.layout import list_checkpoints, step_of
from phalanx.train.model_dir.metrics_log import read_evaluations
from phalanx.train.model_dir.status import State, Status, read_status
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.runtime.task_data import TaskData, make_eval_data
from phalanx.train.runtime.topology import find_devices, make_context
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping

LOG = logging.getLogger("phalanx")

_SELF = Path("/proc/self/stat")

Evaluate = Callable[[str], dict[str, float]]


@dataclass(frozen=True)
class Follow:
    """How to follow a run."""

    skip: bool = False
    """Go on with the newest checkpoint, instead of evaluating each one that is kept."""
    throttle_seconds: float = 0.0
    """At least so long from the begin of one evaluation to the next."""
    limit_seconds: float | None = None
    """End after so long, whatever the run does."""
    wait_seconds: float = 600.0
    """Give up when there was no new checkpoint and no word of the chief for so long."""
    since: float = 0.0
    """What the chief last said before that time is of an earlier run, and does not count."""
    poll_seconds: float = 1.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)


def process_start() -> float:
    """When this process was started: its run may be over before TensorFlow is imported."""
    if not _SELF.exists():
        return time.time()
    ticks = int(_SELF.read_text().rpartition(")")[2].split()[19])
    started: float = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started


@contextlib.contextmanager
def evaluator(experiment: Experiment, config: RunConfig) -> Iterator[tuple[Evaluate, Any]]:
    """A function that evaluates a checkpoint by its path and writes the result; and the model."""
    context = make_context(config.replace(accumulate=1), 1, 1, 0)
    data = make_eval_data(experiment, context)
    if data is None:
        raise ConfigurationError(
            f"{experiment_name(experiment)} has nothing to evaluate: write eval_data(context), or "
            "leave the evaluator out"
        )
    step = StepFunction(experiment, context)
    step.build(None, data.element_spec)
    host_variables = step.make_host_variables()
    engine = AllReduceEngine(
        step, host_variables, tf.distribute.get_strategy(), context, TaskData(None, lambda: data),
        devices=find_devices(config)[:1], clipping=Clipping(), eval_steps=config.eval_steps,
    )  # fmt: skip
    checkpoints = Checkpoints(str(config.model_dir), step, host_variables)
    summaries = Summaries(str(config.model_dir))
    count = int(data.cardinality())

    def evaluate(path: str) -> dict[str, float]:
        checkpoints.load_model(path)
        engine.variables.push()
        batches = count if count > 0 else None
        return evaluation.evaluate(
            step, engine, config.eval_steps, batches, step_of(path), summaries
        )

    try:
        yield evaluate, step.model
    finally:
        summaries.close()


def follow(
    directory: str,
    evaluate: Evaluate,
    how: Follow,
    is_asked_to_stop: Callable[[], bool] = lambda: False,
) -> tuple[int, dict[str, float]]:
    """Evaluate each checkpoint until there will be no more; the last step and its figures."""
    last: tuple[int, dict[str, float]] = (-1, {})
    for path in await_checkpoints(directory, how, is_asked_to_stop):
        with surviving_deletion(path):
            last = step_of(path), evaluate(path)
    return last


@contextlib.contextmanager
def surviving_deletion(path: str) -> Iterator[None]:
    """A checkpoint may be deleted just while it is read: then there are newer ones."""
    try:
        yield
    except (tf.errors.NotFoundError, tf.errors.DataLossError, ConfigurationError):
        if tf.io.gfile.exists(f"{path}.index") and tf.io.gfile.glob(f"{path}.data-*"):
            raise
        LOG.info("%s was deleted before it could be evaluated", path)


def await_checkpoints(
    directory: str, how: Follow, is_asked_to_stop: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """The path of each new checkpoint, until the chief says that there will be no more.

    The final checkpoint is never left out. What an earlier evaluator has already written down does
    not come again.
    """
    started = how.clock()
    done = _evaluated_before(directory)
    heard, word, began = started, 0.0, -float("inf")
    while True:
        status = read_status(directory)
        if status is not None and status.time != word:
            word, heard = status.time, how.clock()
        waiting = [path for path in list_checkpoints(directory) if path not in done]
        is_over = how.limit_seconds is not None and how.clock() - started >= how.limit_seconds
        if is_asked_to_stop() or is_over:
            return
        if waiting and how.clock() - began >= how.throttle_seconds:
            path = waiting[-1] if how.skip else waiting[0]
            began = how.clock()
            yield path
            done |= set(waiting) if how.skip else {path}
            heard = how.clock()
            continue
        is_old = status is not None and _is_old(status, how.since)
        if not waiting and status is not None and not is_old:
            if status.state == State.DONE:
                return
            if status.state in (State.FAILED, State.INTERRUPTED):
                raise TrainingError(f"the chief ended: {status.reason}")
        if not waiting and how.clock() - heard > how.wait_seconds:
            raise PeerError(
                f"no new checkpoint in {directory} for {how.wait_seconds:.0f} s, and no word of "
                "the chief: is it running, and does it save there?"
            )
        how.sleep(how.poll_seconds)


def _evaluated_before(directory: str) -> set[str]:
    """Checkpoints that were not written anew since they were evaluated."""
    times = {found.step: found.time for found in read_evaluations(directory)}
    return {
        path
        for path in list_checkpoints(directory)
        if tf.io.gfile.stat(f"{path}.index").mtime_nsec / 1e9 < times.get(step_of(path), 0.0)
    }


def _is_old(status: Status, since: float) -> bool:
    """A run that goes on in this directory has not yet replaced the word of the one before."""
    return status.state != State.RUNNING and status.time < since
