"""What a session needs of an engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from phalanx.train.step.step_times import StepTimes
from phalanx.train.types import Array, Dataset, KerasVariable

Notify: TypeAlias = Callable[[int, Array], None]
"""Called during an evaluation, with the number of batches so far and the sum of their reports."""


@dataclass(frozen=True)
class Progress:
    """The outcome of one call: updates made, the sum of their reports, whether the data ended."""

    steps: int
    report: Array
    ended: bool = False
    passes: int = 1


class EngineVariables(Protocol):
    """The variables that an engine trains."""

    def model_variables(self) -> Sequence[KerasVariable]:
        """Return the model's variables on the host."""

    def learning_rate(self) -> float: ...


class Engine(Protocol):
    """Runs steps for a session. It knows nothing of hooks, checkpoints or when to stop."""

    variables: EngineVariables
    can_abandon_evaluation: bool = False
    """Whether `notify` may end an evaluation by an exception: no other task takes part."""

    @property
    def calls_in_flight(self) -> int:
        """How many groups of steps were dispatched to trainers and have not ended yet."""
        return 0

    def begin(self, step: int, skip: int, passes: int = 0, shards: Sequence[int] = ()) -> None:
        """Copy the host variables to the devices, and open the data.

        A restarted run has read the data `passes` times, and then `skip` batches; `shards` is what
        `read_shards` returned for its checkpoint.
        """

    def read_shards(self) -> Sequence[int]:
        """Return how much each trainer has read, where they read different numbers of batches.

        The first number is that of the passes over the data, and the others are the batches of the
        next pass. Empty if all trainers have read the same.
        """
        return ()

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Run steps from `step`, never past `limit`, and up to `due` (asynchronously: about)."""

    def rewind(self) -> None:
        """Open the data again from its start."""

    def settle(self) -> Progress | None:
        """Wait for the steps in flight; return those that were not reported yet."""
        return None

    def drop(self) -> Progress | None:
        """End the steps in flight, so that they change no variable any more.

        Returns what they have read, whether it changed the variables or not.
        """
        return self.settle()

    def resume(self, step: int) -> None:
        """Go on from a step with the host variables, after `drop`; the data goes on where it is."""
        self.push()

    def pull(self) -> Progress | None:
        """Settle, and copy the trained variables to the host variables."""

    def push(self) -> None:
        """Copy the chief's host variables to every replica and parameter server, after settling."""

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of every replica and parameter server."""

    def finalize(self) -> bool:
        """Give the weights their final values after the last step; return whether they changed."""

    def is_interrupted(self) -> bool:
        """Whether another task received SIGTERM."""

    def variable_bytes(self) -> Mapping[str, int]:
        """Return the bytes of the variables on each parameter server, by task."""
        return {}

    def trainer_steps(self) -> Mapping[str, int]:
        """Return the steps of each trainer, by task, where they differ from each other."""
        return {}

    def step_times(self) -> Mapping[str, StepTimes]:
        """Return what trainers have spent their time on, by task: those that are measured."""
        return {}

    def rescue(self, step: int) -> Progress | None:
        """Copy the trained variables to the host variables, after a task was lost at a step.

        Returns the steps that were not reported yet; None if variables are lost, or if nothing is.
        """
        return None

    def finish(self, error: BaseException | None) -> None:
        """Release the other tasks at the end of the run; `error` is why it failed, if it did."""


class EvaluationEngine(Protocol):
    """Evaluates the variables as they are."""

    def count_evaluation_batches(self, data: Dataset) -> int | None:
        """Return up to which number `notify` will count, or None if that is unknown.

        `data` is the evaluation data of this task.
        """

    def evaluate(self, notify: Notify, batches_per_call: int | None = None) -> Array:
        """Return the sum of all reports; call `notify` each time that some batches are done."""


class TrainingEngine(Engine, EvaluationEngine, Protocol):
    """Runs the steps of an experiment, and evaluates it."""
