"""The checkpoint evaluator: evaluates each new checkpoint of a run that another process trains."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from phalanx.errors import CheckpointError, ConfigurationError, PeerError, TrainingError
from phalanx.train.config import RunConfig
from phalanx.train.engines.all_reduce import AllReduceEngine
from phalanx.train.experiment import Experiment, experiment_name
from phalanx.train.loop.evaluation import evaluate
from phalanx.train.model_dir.checkpoint import Checkpoints
from phalanx.train.model_dir.layout import list_checkpoints, step_of
from phalanx.train.model_dir.metrics_log import read_evaluations
from phalanx.train.model_dir.status import State, Status, read_status
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.runtime.task_data import TaskData, make_eval_data
from phalanx.train.runtime.topology import find_devices, make_context
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import Model
from phalanx.train.variables.clipping import Clipping

LOG = logging.getLogger("phalanx")

_PROCESS_STATUS = Path("/proc/self/stat")

EvaluateCheckpoint = Callable[[str], dict[str, float]]


@dataclass(frozen=True)
class WatchOptions:
    """How to watch the checkpoints of a run."""

    skip: bool = False
    """Evaluate only the newest checkpoint, instead of each that exists."""
    throttle_seconds: float = 0.0
    """The shortest time from the start of one evaluation to the start of the next."""
    limit_seconds: float | None = None
    """Stop after this time, even if the run continues."""
    wait_seconds: float = 600.0
    """Give up if there is no new checkpoint and no heartbeat of the chief for this time."""
    since: float = 0.0
    """Ignore a final status that was written before this time, unless by the chief of `job`."""
    job: str = ""
    """The run id of this job; empty without a launcher."""
    chief_restarts: bool = False
    """Wait for a chief that has failed or was preempted: its launcher starts it again."""
    poll_seconds: float = 1.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def trusts(self, status: Status) -> bool:
        """Whether a status is that of the run that is watched."""
        return status.time >= self.since or bool(self.job and status.job == self.job)


def process_start_time() -> float:
    """Return when this process started; a run may end while its evaluator imports TensorFlow."""
    if not _PROCESS_STATUS.exists():
        return time.time()
    ticks = int(_PROCESS_STATUS.read_text().rpartition(")")[2].split()[19])
    started: float = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started


@contextlib.contextmanager
def open_evaluator(
    experiment: Experiment, config: RunConfig
) -> Iterator[tuple[EvaluateCheckpoint, Model]]:
    """Yield a function that evaluates a checkpoint and writes the result, and the model."""
    context = make_context(config.replace(accumulate=1), 1, 1, 0)
    data = make_eval_data(experiment, context)
    if data is None:
        raise ConfigurationError(
            f"{experiment_name(experiment)} has no evaluation data: write eval_data(context), or "
            "start the run without an evaluator"
        )
    step_function = StepFunction(experiment, context)
    step_function.build(None, data.element_spec)
    host_variables = step_function.make_host_variables()
    engine = AllReduceEngine(
        step_function, host_variables, tf.distribute.get_strategy(), context,
        TaskData(None, lambda: data), devices=find_devices(config)[:1],
        clipping=Clipping(), eval_steps=config.eval_steps,
    )  # fmt: skip
    checkpoints = Checkpoints(str(config.model_dir), step_function, host_variables)
    summaries = Summaries(str(config.model_dir))
    batches = engine.count_evaluation_batches(data)

    def evaluate_checkpoint(path: str) -> dict[str, float]:
        checkpoints.load_model(path)
        engine.variables.push()
        return evaluate(step_function, engine, summaries, batches, step_of(path))

    try:
        yield evaluate_checkpoint, step_function.model
    finally:
        summaries.close()


def evaluate_checkpoints(
    directory: str,
    evaluate_checkpoint: EvaluateCheckpoint,
    options: WatchOptions,
    is_asked_to_stop: Callable[[], bool] = lambda: False,
) -> tuple[int, dict[str, float]]:
    """Evaluate each checkpoint until the run ends; return the last step and its metrics."""
    last: tuple[int, dict[str, float]] = (-1, {})
    unreadable: list[CheckpointError] = []
    for path in watch_checkpoints(directory, options, is_asked_to_stop):
        with pass_over_unreadable(path) as errors:
            last = step_of(path), evaluate_checkpoint(path)
        unreadable = errors or unreadable
    if last[0] < 0 and unreadable:
        raise unreadable[0]
    return last


@contextlib.contextmanager
def pass_over_unreadable(path: str) -> Iterator[list[CheckpointError]]:
    """Pass over a checkpoint that is damaged or of another model, or deleted while it is read.

    The context is a list, to which the error of a checkpoint is added that still exists.
    """
    errors: list[CheckpointError] = []
    try:
        yield errors
    except (tf.errors.NotFoundError, CheckpointError) as error:
        if not tf.io.gfile.exists(f"{path}.index"):
            LOG.info("%s was deleted before it could be evaluated", path)
        elif isinstance(error, CheckpointError):
            LOG.warning("passing over a checkpoint: %s", error)
            errors.append(error)
        else:
            raise


def watch_checkpoints(
    directory: str, options: WatchOptions, is_asked_to_stop: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Yield the path of each new checkpoint until the chief has written its last one.

    The last checkpoint is always among them. A checkpoint that an earlier evaluator has evaluated
    is not.
    """
    clock = options.clock
    start_time = clock()
    evaluated = _find_evaluated(directory)
    status_time = 0.0
    last_activity, last_start = start_time, -float("inf")
    while True:
        status = read_status(directory)
        if status is not None and status.time != status_time:
            status_time, last_activity = status.time, clock()
        waiting = [path for path in list_checkpoints(directory) if path not in evaluated]
        limit = options.limit_seconds
        if is_asked_to_stop() or (limit is not None and clock() - start_time >= limit):
            return
        if waiting and clock() - last_start >= options.throttle_seconds:
            path = waiting[-1] if options.skip else waiting[0]
            last_start = clock()
            yield path
            evaluated |= set(waiting) if options.skip else {path}
            last_activity = clock()
            continue
        # A final status before `since` may be that of an earlier run in the same directory.
        if not waiting and status is not None and options.trusts(status):
            if status.state == State.DONE:
                return
            has_failed = status.state in (State.FAILED, State.INTERRUPTED)
            is_over = clock() - last_activity > options.wait_seconds
            if has_failed and (is_over or not options.chief_restarts):
                raise TrainingError(f"the chief ended: {status.reason}")
        if not waiting and clock() - last_activity > options.wait_seconds:
            raise PeerError(
                f"no new checkpoint in {directory} for {options.wait_seconds:.0f} s, and no "
                "heartbeat of the chief: check that it runs and saves to this directory"
            )
        options.sleep(options.poll_seconds)


def _find_evaluated(directory: str) -> set[str]:
    """Return the checkpoints that are older than their evaluation."""
    times = {found.step: found.time for found in read_evaluations(directory)}
    return {
        path
        for path in list_checkpoints(directory)
        if tf.io.gfile.stat(f"{path}.index").mtime_nsec / 1e9 < times.get(step_of(path), 0.0)
    }
