"""tf.estimator.experimental: hooks that end training by the results of evaluations."""

import logging
from collections.abc import Callable, Iterator, Mapping
from operator import gt, lt
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.exporters import read_evaluations

LOG = logging.getLogger("phalanx")

Compare = Callable[[float, float], bool]


def make_early_stopping_hook(
    estimator: Any,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> "EarlyStoppingHook":
    """Return a hook that ends training on all tasks when a function of the chief says so.

    Args:
        estimator: The estimator that trains.
        should_stop_fn: Called without arguments on the chief.
        run_every_secs: How often it is called.
        run_every_steps: Call it every so many steps instead.

    Returns:
        The hook, which every task needs.
    """
    if not callable(should_stop_fn):
        raise TypeError(f"should_stop_fn is {should_stop_fn!r}: pass a function")
    if run_every_secs is not None and run_every_steps is not None:
        raise ValueError("both run_every_secs and run_every_steps are set: set one, the other None")
    timer = tf.train.SecondOrStepTimer(run_every_secs, run_every_steps)
    return EarlyStoppingHook(estimator.config, should_stop_fn, timer)


class EarlyStoppingHook(tf.train.SessionRunHook):
    """Ends training on all tasks when the chief's function says so.

    The chief puts a token into a queue on the first parameter server, where the others find it.

    Args:
        config: The `RunConfig` of this task.
        should_stop_fn: Called without arguments on the chief.
        timer: When to call it.
    """

    def __init__(self, config: Any, should_stop_fn: Callable[[], bool], timer: Any) -> None:
        self._config = config
        self._should_stop = should_stop_fn
        self._timer = timer

    def begin(self) -> None:
        """Make the queue."""
        with tf.device("/job:ps/task:0" if self._config.num_ps_replicas else None):
            queue = tf.FIFOQueue(1000, [tf.bool], shapes=[[]], shared_name="phalanx_early_stopping")
            self._size, self._stop = queue.size(), queue.enqueue(True)
            self._clear: Any = queue.dequeue_many(self._size)
        self._step = tf.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Forget on the chief how an earlier run has ended, but not after a recovery."""
        if self._config.is_chief and self._clear is not None:
            session.run(self._clear)
            self._clear = None

    def before_run(self, run_context: Any) -> Any:
        """Ask for the step, and whether the chief has said stop."""
        return tf.train.SessionRunArgs([self._step, self._size])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """End training if it is time."""
        step, stops = run_values.results
        if self._config.is_chief and self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._should_stop():
                LOG.info("early stopping at step %d", step)
                run_context.session.run(self._stop)
                run_context.request_stop()
        if not self._config.is_chief and stops:
            run_context.request_stop()


def stop_if_higher_hook(
    estimator: Any,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that ends training when a metric of an evaluation is above a threshold.

    Args:
        estimator: The estimator that trains.
        metric_name: The metric.
        threshold: The threshold.
        eval_dir: The directory of the evaluations; by default `estimator.eval_dir()`.
        min_steps: Evaluations before this step do not count.
        run_every_secs: How often to read the evaluations.
        run_every_steps: Read them every so many steps instead.

    Returns:
        The hook, which every task needs.
    """
    read = _make_reader(estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(
        estimator,
        lambda: any(value > threshold for _, value in read()),
        run_every_secs,
        run_every_steps,
    )


def stop_if_lower_hook(
    estimator: Any,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that ends training when a metric is below a threshold.

    The arguments are those of `stop_if_higher_hook`.
    """
    read = _make_reader(estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(
        estimator,
        lambda: any(value < threshold for _, value in read()),
        run_every_secs,
        run_every_steps,
    )


def stop_if_no_increase_hook(
    estimator: Any,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that ends training when a metric has not increased for so many steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    read = _make_reader(estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(
        estimator,
        lambda: _has_stalled(read(), gt, max_steps_without_increase),
        run_every_secs,
        run_every_steps,
    )


def stop_if_no_decrease_hook(
    estimator: Any,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that ends training when a metric has not decreased for so many steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    read = _make_reader(estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(
        estimator,
        lambda: _has_stalled(read(), lt, max_steps_without_decrease),
        run_every_secs,
        run_every_steps,
    )


def _make_reader(
    estimator: Any, metric_name: str, eval_dir: str | None, min_steps: int
) -> Callable[[], Iterator[tuple[int, float]]]:
    def read() -> Iterator[tuple[int, float]]:
        found: dict[int, Mapping[str, Any]] = {}
        for step, metrics in read_evaluations(f"{eval_dir or estimator.eval_dir()}/*.tfevents.*"):
            found[step] = metrics
        for step in sorted(found):
            if metric_name not in found[step]:
                raise ValueError(
                    f"the evaluations have no metric {metric_name!r}: there are "
                    f"{', '.join(sorted(found[step]))}"
                )
            if step >= min_steps:
                yield step, found[step][metric_name]

    return read


def _has_stalled(evaluations: Iterator[tuple[int, float]], is_better: Compare, steps: int) -> bool:
    best, best_step = None, 0
    for step, value in evaluations:
        if best is None or is_better(value, best):
            best, best_step = value, step
        if step - best_step >= steps:
            return True
    return False
