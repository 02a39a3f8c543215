"""Records a job in a tracker of experiments: one run for the whole job, also over restarts."""

import contextlib
import json
import logging
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from phalanx.train.config import RunConfig
from phalanx.train.hooks.base import Every, Hook
from phalanx.train.loop.metrics_window import MetricsWindow
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.metrics_log import read_evaluations
from phalanx.train.trackers.base import Tracker, collect_parameters
from phalanx.train.trackers.mlflow import MLflow
from phalanx.train.trackers.wandb import Wandb

LOG = logging.getLogger("phalanx")

_FILE = "trackers.json"
_POLL_SECONDS = 10.0


class TrackerHook(Hook):
    """Records parameters, metrics, exports and plots of a job in a tracker.

        TrackerHook(tracker, config)

    Only the chief runs it, so a job is one run however many tasks it has. The ID of the run is in
    model_dir: a job that is started again goes on in the same run. What cannot be sent while the
    job runs is reported, and does not end it.

    Args:
        tracker: Where to record: any object with the methods of a `Tracker`.
        config: The settings of the run, which become parameters, as do the flags of the program.
    """

    def __init__(self, tracker: Tracker, config: RunConfig) -> None:
        self._tracker = tracker
        self._config = config
        self._when = Every(steps=config.summary_steps, seconds=config.summary_seconds)
        self._poll = Every(seconds=_POLL_SECONDS)
        self._window: MetricsWindow | None = None
        self._evaluated = -1
        self._speed_since = (0.0, 0.0)
        self._is_failing = False

    def begin(self, session: Session) -> None:
        path = Path(session.directory, _FILE) if session.directory else None
        known: dict[str, str] = {}
        if path is not None and session.is_restored:
            with contextlib.suppress(OSError, ValueError):
                known = dict(json.loads(path.read_text()))
        name = Path(session.directory or "run").resolve().name
        parameters = collect_parameters(self._config, sys.argv[1:])
        run_id = self._tracker.open(known.get(self._tracker.name), name, parameters)
        if path is not None:
            path.write_text(json.dumps({**known, self._tracker.name: run_id}))
        evaluations = read_evaluations(session.directory) if session.directory else []
        self._evaluated = max((each.step for each in evaluations), default=-1)
        self._window = session.open_window()
        self._when.start(session.step, session.now)
        self._poll.start(session.step, session.now)
        self._speed_since = (session.now, session.examples)

    def due(self, step: int) -> int | None:
        return self._when.next_step(step)

    def after_step(self, session: Session) -> None:
        if self._when.is_due(session.step, session.now):
            self._log_training(session)
        if self._poll.is_due(session.step, session.now):
            self._log_evaluations(session)

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        self._log_evaluation(session.step, values)

    def on_rollback(self, session: Session) -> None:
        self._when.start(session.step, session.now)
        self._poll.start(session.step, session.now)

    def end(self, session: Session) -> None:
        self._log_training(session)
        self._log_evaluations(session)
        if session.directory and not session.is_interrupted:
            export = Path(session.directory, "export")
            found = [export] if export.is_dir() else []
            for path in (*found, *sorted(Path(session.directory).glob("*.png"))):
                self._try(lambda path=path: self._tracker.add_artifact(path))  # type: ignore[misc]
        self._try(lambda: self._tracker.close(not session.is_interrupted))

    def on_error(self, session: Session, error: BaseException) -> None:
        if self._window is not None:
            self._try(lambda: self._tracker.close(False))

    def _log_training(self, session: Session) -> None:
        values = self._window.read() if self._window is not None else {}
        if not values:
            return
        found = {f"train/{name}": value for name, value in values.items()}
        if not math.isnan(session.learning_rate):
            found["learning_rate"] = session.learning_rate
        since, read = self._speed_since
        # The time of a session stands still within a group of steps.
        if session.now > since:
            found["examples_per_second"] = (session.examples - read) / (session.now - since)
        self._speed_since = (session.now, session.examples)
        self._try(lambda: self._tracker.log(session.step, found))

    def _log_evaluations(self, session: Session) -> None:
        """Record what an evaluator has written to model_dir since the last time."""
        for each in read_evaluations(session.directory) if session.directory else ():
            self._log_evaluation(each.step, each.values)

    def _log_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._evaluated:
            self._evaluated = step
            found = {f"eval/{name}": value for name, value in values.items()}
            self._try(lambda: self._tracker.log(step, found))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if not self._is_failing:
                LOG.warning("%s: the run is not recorded completely: %s", self._tracker.name, error)
            self._is_failing = True


class MLflowHook(TrackerHook):
    """Records the job as a run of MLflow; `--hooks mlflow` adds it.

    MLFLOW_TRACKING_URI says where. Needs the extra `mlflow`.

    Args:
        config: The settings of the run.
        experiment: The experiment of MLflow; by default that of MLFLOW_EXPERIMENT_NAME.
    """

    def __init__(self, config: RunConfig, experiment: str | None = None) -> None:
        super().__init__(MLflow(experiment), config)


class WandbHook(TrackerHook):
    """Records the job as a run of Weights & Biases; `--hooks wandb` adds it.

    WANDB_API_KEY and WANDB_MODE are those of its library. Needs the extra `wandb`.

    Args:
        config: The settings of the run.
        project: The project; by default that of WANDB_PROJECT.
    """

    def __init__(self, config: RunConfig, project: str | None = None) -> None:
        super().__init__(Wandb(project), config)


class HParamsHook(TrackerHook):
    """Writes the parameters of the run for the HParams page of TensorBoard.

    `--hooks hparams` adds it. The metrics are those of the summaries.

    Args:
        config: The settings of the run.
    """

    def __init__(self, config: RunConfig) -> None:
        from phalanx.train.trackers.hparams import HParams  # noqa: PLC0415

        super().__init__(HParams(), config)
