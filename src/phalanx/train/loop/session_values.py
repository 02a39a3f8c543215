"""What hooks read of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from phalanx.train.engines.base import Engine
from phalanx.train.loop.base import SessionCheckpoints
from phalanx.train.loop.position import Position
from phalanx.train.step.step_times import StepTimes
from phalanx.train.types import Array, ElementSpec, KerasVariable, Model, Optimizer

if TYPE_CHECKING:
    from phalanx.train.custom_loop.custom_step import CustomStep
    from phalanx.train.experiment import Experiment
    from phalanx.train.model_dir.summaries import Summaries
    from phalanx.train.step.step_function import StepFunction


class SessionValues:
    """What hooks read of a session: the step, the loss, the model and its variables."""

    def __init__(
        self,
        step_function: StepFunction | CustomStep,
        engine: Engine,
        checkpoints: SessionCheckpoints,
        summaries: Summaries,
    ) -> None:
        self._step_function = step_function
        self._engine = engine
        self._checkpoints = checkpoints
        self._last_report = np.zeros([step_function.report_size])
        self.total_report = np.zeros([step_function.report_size])
        """The sum of all reports of this session, without those of steps that diverged."""
        self.summaries = summaries
        self.step = 0
        self.examples = 0.0
        self.position = Position()
        self.epochs: int | None = None
        self.steps_per_epoch: int | None = None
        """About how many steps an epoch has, if that is known."""
        self.limit: int | None = None
        self.now = 0.0
        self.stop_reason: str | None = None
        self.is_interrupted = False
        self.is_restored = False
        self.can_evaluate = False
        """Whether there is evaluation data."""
        self.evaluation: dict[str, float] = {}
        self.evaluated_step: int | None = None
        self.stragglers: frozenset[str] = frozenset()
        """The trainers that are much slower than the others, by task."""

    @property
    def model(self) -> Model:
        """The model; call `pull` before you read its variables."""
        return self._step_function.model

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer on the host; None in a loop that the user writes."""
        return self._step_function.optimizer

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """All optimizers on the host: several if the model's own `train_step` calls several."""
        return self._step_function.optimizers

    @property
    def updates_in_place(self) -> bool:
        """Whether a step may call an optimizer several times."""
        return self._step_function.updates_in_place

    @property
    def variables(self) -> dict[str, KerasVariable]:
        """The weights and the other state of the model by name, without the model's own name."""
        root = f"{getattr(self.model, 'name', '')}/"
        variables = self._engine.variables.model_variables()
        return dict(self._step_function.named) or {v.path.removeprefix(root): v for v in variables}

    @property
    def experiment(self) -> Experiment | None:
        """The experiment; None in a loop that the user writes."""
        return self._step_function.experiment

    @property
    def element_spec(self) -> ElementSpec:
        return self._step_function.element_spec

    @property
    def directory(self) -> str:
        """The directory of the run's checkpoints and summaries."""
        return self._checkpoints.directory

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self._engine.variables.learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._engine.set_learning_rate(value)

    @property
    def trainer_steps(self) -> Mapping[str, int]:
        """The steps of each trainer in this session, by task, where they differ from each other."""
        return self._engine.trainer_steps()

    @property
    def variable_bytes(self) -> Mapping[str, int]:
        """The bytes of the variables on each parameter server, by task."""
        return self._engine.variable_bytes()

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, if there is one."""
        return self._checkpoints.latest

    @property
    def calls_in_flight(self) -> int:
        """How many groups of steps were dispatched to trainers and have not ended yet."""
        return self._engine.calls_in_flight

    @property
    def step_times(self) -> Mapping[str, StepTimes]:
        """What trainers have spent their time on so far, by task: those that are measured here."""
        return self._engine.step_times()

    @property
    def last_loss(self) -> float:
        """The mean loss of the last group of steps."""
        return float(self._last_report[1]) / max(float(self._last_report[0]), 1.0)

    def read_values(self, report: Array) -> dict[str, float]:
        """Compute the mean loss and the metrics from a sum of reports."""
        return self._step_function.read_report(report)
