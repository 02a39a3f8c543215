"""Serves the metrics of a run to Prometheus, from the chief."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phalanx import __version__
from phalanx.metrics_endpoint import MetricsEndpoint
from phalanx.train.hooks.base import Hook, find_total
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.task_files import read_task_files
from phalanx.train.runtime.topology import Topology
from phalanx.train.step.step_times import StepTimes
from phalanx.train.variables.table import Table

_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SAVE_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_SECONDS_BETWEEN_SPEEDS = 2.0


class MetricsHook(Hook):
    """Serves the step, the speed, the times of steps and checkpoints, losses and restarts.

    Args:
        host: The address to listen on.
        port: The port to listen on; 0 takes any free port.
        topology: The part of this process in the run.
    """

    def __init__(self, host: str, port: int, topology: Topology) -> None:
        self._address = (host, port)
        self._topology = topology
        self._endpoint: MetricsEndpoint | None = None
        self._registry = CollectorRegistry()
        self._metrics = _RunMetrics(self._registry)
        self._seen: tuple[int, float] | None = None
        self._is_traced = False
        self._speed_since = (0.0, 0.0)
        self._entered = self._save_began = 0.0

    @property
    def port(self) -> int | None:
        """The port that is listened on, while the session runs."""
        return self._endpoint.port if self._endpoint is not None else None

    def begin(self, session: Session) -> None:
        strategy = self._topology.strategy.name.lower()
        about = {"version": __version__, "strategy": strategy, "model_dir": session.directory}
        self._metrics.run.info(about)
        if session.is_restored:
            # A remote checkpoint has no time that could be read cheaply.
            with suppress(OSError):
                index = Path(f"{session.latest_checkpoint}.index")
                self._metrics.checkpoint_time.set(index.stat().st_mtime)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._registry.register(_Readings(session.directory, lambda: session.step_times))
        self._speed_since = (time.perf_counter(), session.examples)
        self._update(session)
        self._read_tables(session)
        self._endpoint = MetricsEndpoint(self._registry, *self._address)

    def before_step(self, session: Session) -> None:
        self._entered = time.perf_counter()

    def after_step(self, session: Session) -> None:
        steps = session.step - (self._seen or (session.step,))[0]
        # The first group of steps includes the tracing.
        if self._is_traced and steps > 0:
            seconds = (time.perf_counter() - self._entered) / steps
            for _ in range(steps):
                self._metrics.step_seconds.observe(seconds)
        self._is_traced = True
        self._update(session)

    def may_save(self, session: Session) -> bool:
        self._save_began = time.perf_counter()
        return True

    def on_save(self, session: Session, path: str) -> None:
        self._metrics.checkpoint_seconds.observe(time.perf_counter() - self._save_began)
        self._metrics.checkpoint_time.set_to_current_time()
        self._read_tables(session)

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._metrics.evaluation.labels(name).set(value)

    def on_rollback(self, session: Session) -> None:
        self._metrics.rollbacks.inc()

    def end(self, session: Session) -> None:
        self._update(session)
        self._read_tables(session)
        self._close()

    def on_error(self, session: Session, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    def _update(self, session: Session) -> None:
        metrics = self._metrics
        metrics.step.set(session.step)
        if (total := find_total(session)) is not None:
            metrics.last_step.set(total)
        if session.examples:
            metrics.loss.set(session.last_loss)
        step, examples = self._seen or (session.step, session.examples)
        metrics.steps.inc(max(0, session.step - step))
        metrics.examples.inc(max(0.0, session.examples - examples))
        self._seen = (session.step, session.examples)
        since, read = self._speed_since
        if (seconds := time.perf_counter() - since) >= _SECONDS_BETWEEN_SPEEDS:
            metrics.speed.set((session.examples - read) / seconds)
            self._speed_since = (time.perf_counter(), session.examples)
            self._read_tables(session)
        trainers = self._topology.trainers
        steps_of = session.trainer_steps or {str(task): session.step for task in trainers}
        for task, steps in steps_of.items():
            metrics.trainer_steps.labels(task).set(steps)
            metrics.straggler.labels(task).set(task in session.stragglers)
        metrics.in_flight.set(session.calls_in_flight)

    def _read_tables(self, session: Session) -> None:
        """Read the counts of growing tables, which may be on parameter servers."""
        for name, variable in session.variables.items():
            if not isinstance(variable, Table) or variable.index is None:
                continue
            found = variable.index.statistics()
            self._metrics.table_rows.labels(name).set(found.rows)
            counts = {
                "admitted": found.admitted,
                "evicted": found.evicted,
                "expired": found.expired,
            }
            for event, count in counts.items():
                self._metrics.table_ids.labels(name, event).set(count)


class _RunMetrics:
    """What the hook sets as the session goes on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"phalanx_{name}", text, labels, registry=registry)

        self.run = Info("phalanx_run", "The run.", registry=registry)
        self.step = gauge("step", "The number of the last step, also over restarts.")
        self.last_step = gauge("last_step", "The step at which the run ends, if that is known.")
        self.loss = gauge("loss", "The mean loss of the last group of steps.")
        self.speed = gauge("examples_per_second", "The speed of all trainers together.")
        self.evaluation = gauge("evaluation", "The last evaluation.", "metric")
        self.trainer_steps = gauge("trainer_steps", "The steps of each trainer.", "task")
        self.straggler = gauge(
            "straggler", "Whether a trainer is much slower than the others (1 or 0).", "task"
        )
        self.in_flight = gauge(
            "calls_in_flight", "Groups of steps that the chief waits for (asynchronous training)."
        )
        self.checkpoint_time = gauge(
            "checkpoint_timestamp_seconds", "When the last checkpoint was written, in Unix time."
        )
        self.table_rows = gauge(
            "table_rows", "How many ids have a row of a growing table.", "table"
        )
        self.table_ids = gauge(
            "table_ids",
            "How many ids a growing table has admitted, evicted and let expire, over restarts.",
            "table",
            "event",
        )
        self.steps = Counter(
            "phalanx_steps", "Steps since this process started.", registry=registry
        )
        self.examples = Counter(
            "phalanx_examples", "Examples since this process started.", registry=registry
        )
        self.rollbacks = Counter(
            "phalanx_rollbacks",
            "How often the run has gone back to a checkpoint because it diverged.",
            registry=registry,
        )
        self.step_seconds = Histogram(
            "phalanx_step_seconds",
            "The time of a step: the mean of the group of steps that it was run in.",
            buckets=_STEP_BUCKETS,
            registry=registry,
        )
        self.checkpoint_seconds = Histogram(
            "phalanx_checkpoint_seconds",
            "The time to write a checkpoint.",
            buckets=_SAVE_BUCKETS,
            registry=registry,
        )


class _Readings(Collector):
    """What is read when Prometheus asks for it."""

    def __init__(self, directory: str, read_times: Callable[[], Mapping[str, StepTimes]]) -> None:
        self._directory = directory
        self._read_times = read_times

    def collect(self) -> Iterator[Metric]:
        parts = {
            "data_wait": "How long each trainer has waited for its training data.",
            "computing": "How long each trainer has computed.",
            "peer_wait": "How long each trainer has waited for others or parameter servers.",
        }
        for (name, text), part in zip(parts.items(), fields(StepTimes), strict=True):
            family = CounterMetricFamily(f"phalanx_{name}_seconds", text, labels=["task"])
            for task, spent in self._read_times().items():
                family.add_metric([task], getattr(spent, part.name))
            yield family
        text = "How often each task was restarted."
        restarts = CounterMetricFamily("phalanx_task_restarts", text, labels=["task"])
        text = "When each task last reported that it runs, in Unix time."
        times = GaugeMetricFamily("phalanx_task_timestamp_seconds", text, labels=["task"])
        for report in read_task_files(Path(self._directory)) if self._directory else ():
            restarts.add_metric([report.task], report.restarts)
            times.add_metric([report.task], report.time)
        yield from (restarts, times)
