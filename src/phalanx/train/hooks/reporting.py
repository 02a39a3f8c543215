"""Hooks that report on a run: log lines, summaries, a progress bar, and profiles."""

import logging
import math
from collections.abc import Callable, Mapping

import tensorflow as tf
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phalanx.errors import ConfigurationError
from phalanx.train.hooks.base import At, Every, Hook, PeriodicHook, When
from phalanx.train.loop.metrics_window import MetricsWindow
from phalanx.train.loop.session import Session
from phalanx.train.types import Array, Tensor

LOG = logging.getLogger("phalanx")


class _MetricsHook(PeriodicHook):
    """A periodic hook that reads the means of the loss and the metrics since it last acted."""

    _window: MetricsWindow | None = None

    def begin(self, session: Session) -> None:
        super().begin(session)
        self._window = session.open_window()

    def _read_means(self) -> dict[str, float]:
        assert self._window is not None
        return self._window.read()


class LoggingHook(_MetricsHook):
    """Logs the means of the loss and the metrics: `step 200 of 1000: loss = 0.3124, mae = 0.91`."""

    def act(self, session: Session) -> None:
        values = ", ".join(f"{k} = {v:.5g}" for k, v in self._read_means().items())
        of = f" of {session.limit}" if session.limit else ""
        LOG.info("step %d%s: %s", session.step, of, values)


class GradientNormHook(_MetricsHook):
    """Logs the mean norm of each replica's gradients before clipping, and warns above a limit.

        GradientNormHook(Every(steps=100), limit=10.0)

    Summaries show the norm as `gradient_norm`. The step of a `DistributedSession` must return
    `gradient_norm` among its values.

    Args:
        when: Decides when to log. By default every 100 steps.
        limit: Log a warning if the norm is larger than this.
    """

    needs_gradient_norm = True

    def __init__(self, when: When | None = None, limit: float | None = None) -> None:
        super().__init__(when or Every(steps=100))
        self.limit = limit

    def act(self, session: Session) -> None:
        values = self._read_means()
        if "gradient_norm" not in values:
            raise ConfigurationError(
                "GradientNormHook found no gradient_norm: let the step return a dict with "
                '"gradient_norm": tf.linalg.global_norm(gradients)'
            )
        norm = values["gradient_norm"]
        if self.limit is not None and norm > self.limit:
            LOG.warning(
                "gradient norm %.4g at step %d is larger than %g: clip the gradients, or lower "
                "the learning rate", norm, session.step, self.limit,
            )  # fmt: skip
        else:
            LOG.info("gradient norm %.4g at step %d", norm, session.step)


class SummaryHook(_MetricsHook):
    """Writes the loss, metrics, learning rate and speed to TensorBoard event files in model_dir.

    Args:
        when: Decides when to write.
        speed: Returns the current number of examples per second.
        images: Returns images by name, of shape [n, height, width, channels]. It is called each
            time that summaries are written.
        histograms: Whether to write a histogram of each weight. The weights must be fetched from
            the devices, which takes time, most of all from parameter servers.
    """

    def __init__(
        self,
        when: When,
        speed: Callable[[Session], float] | None = None,
        images: Callable[[], Mapping[str, Array | Tensor]] | None = None,
        histograms: bool = False,
    ) -> None:
        super().__init__(when)
        self._speed = speed
        self._images = images
        self._histograms = histograms

    def begin(self, session: Session) -> None:
        super().begin(session)
        session.summaries.write_graph(session.model)

    def on_epoch(self, session: Session, values: Mapping[str, float]) -> None:
        named = {f"epoch/{name}": value for name, value in values.items()}
        session.summaries.write_scalars("train", session.step, named)

    def end(self, session: Session) -> None:
        self.act(session)

    def act(self, session: Session) -> None:
        values = self._read_means()
        if not values:
            return
        rate = session.learning_rate
        if not math.isnan(rate):
            values["learning_rate"] = rate
        if self._speed is not None and (speed := self._speed(session)):
            values["examples_per_second"] = speed
        session.summaries.write_training(session.step, values)
        for name, images in (self._images() if self._images else {}).items():
            session.summaries.write_images("train", session.step, name, images)
        if self._histograms:
            session.pull()
            weights = {name: variable.numpy() for name, variable in session.variables.items()}
            session.summaries.write_histograms("train", session.step, weights)


class ExamplesPerSecondHook(PeriodicHook):
    """Logs the average and the current speed: `Average examples/sec: 1116.92 (1116.92), step = 10`.

    The first group of steps does not count, because it includes the tracing.

    Args:
        when: Decides when to log.
    """

    def __init__(self, when: When) -> None:
        super().__init__(when)
        self.average = 0.0
        self.current = 0.0
        self.logs = True
        """Whether to log the speed, and not only to measure it."""
        self._start: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def after_step(self, session: Session) -> None:
        if self._start is None:
            self._start = self._last = (session.now, session.examples)
            return
        if not self.when.is_due(session.step, session.now):
            return
        self.measure(session)
        if self.average and self.logs:
            text = "Average examples/sec: %.2f (%.2f), step = %d"
            LOG.info(text, self.average, self.current, session.step)

    def measure(self, session: Session) -> float:
        """Update `average` and `current`, and return `current`."""
        if self._start is None or session.now <= self._last[0]:
            return self.current
        now, examples = session.now, float(session.examples)
        self.average = (examples - self._start[1]) / (now - self._start[0])
        self.current = (examples - self._last[1]) / (now - self._last[0])
        self._last = (now, examples)
        return self.current

    def end(self, session: Session) -> None:
        self.measure(session)


class ProgressBarHook(Hook):
    """Shows a progress bar with the loss and the remaining time on a terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def begin(self, session: Session) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            transient=True,
        )
        total, done = session.limit, session.step
        self._progress.add_task("", total=total, completed=done, loss=float("nan"))
        self._progress.start()

    def after_step(self, session: Session) -> None:
        if self._progress is not None:
            [bar] = self._progress.task_ids
            self._progress.update(bar, completed=session.step, loss=session.last_loss)

    def end(self, session: Session) -> None:
        if self._progress is not None:
            self._progress.stop()

    def on_error(self, session: Session, error: BaseException) -> None:
        self.end(session)


class ProfilerHook(PeriodicHook):
    """Profiles some steps of the chief, for the Profile tab of TensorBoard.

        ProfilerHook()
        ProfilerHook(Every(steps=10_000), steps=10)

    The profiles are in model_dir. To see them, `pip install tensorboard-plugin-profile`, then run
    `phalanx board`.

    Args:
        when: Decides when a profile starts. By default at step 10.
        steps: How many steps to profile.
    """

    def __init__(self, when: When | None = None, steps: int = 5) -> None:
        super().__init__(when or At(10))
        self.steps = steps
        self._end_step: int | None = None

    def due(self, step: int) -> int | None:
        if self._end_step is None:
            return self.when.next_step(step)
        return max(self._end_step, step + 1)

    def after_step(self, session: Session) -> None:
        is_due = self.when.is_due(session.step, session.now)
        if self._end_step is not None and session.step >= self._end_step:
            self._stop()
            LOG.info("profiled up to step %d: phalanx board %s", session.step, session.directory)
        elif is_due and self._end_step is None:
            tf.profiler.experimental.start(session.directory)
            self._end_step = session.step + self.steps

    def end(self, session: Session) -> None:
        self._stop()

    def on_error(self, session: Session, error: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._end_step is not None:
            self._end_step = None
            tf.profiler.experimental.stop()
