"""What the asynchronous and the synchronous engine on parameter servers have in common."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from phalanx.cluster import Role
from phalanx.train.engines.base import Progress, TrainingEngine
from phalanx.train.engines.replicas import (
    Replicas,
    find_lost,
    forget_errors,
)
from phalanx.train.engines.steps_per_call import StepsPerCall
from phalanx.train.loop.evaluation import SharedEvaluation
from phalanx.train.runtime.free_memory import Need, check_free_memory
from phalanx.train.runtime.ps_cluster import ParameterServerCluster
from phalanx.train.step.accumulation import Compute, accumulate_parts
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import Batch, Dataset, ElementSpec, Tensor
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.store_size import add_replicas, measure_stores

T = TypeVar("T", bound=Callable[..., Any])


class ParameterServerEngine(TrainingEngine):
    """The variables on the parameter servers, the step, and the evaluation on all hosts.

    With `pauses`, no trainer computes ahead of what the session may change: a synchronous one does
    nothing between two calls, an asynchronous one waits at the end of each epoch.
    """

    def __init__(
        self,
        ps_cluster: ParameterServerCluster,
        step: StepFunction,
        host_variables: HostVariables,
        element_spec: ElementSpec,
        clipping: Clipping,
        pauses: bool = False,
    ) -> None:
        self._ps_cluster = ps_cluster
        self._step = step
        self._pauses = pauses
        self._check_memory(host_variables)
        self.variables: DeviceVariables = DeviceVariables.place(
            host_variables, ps_cluster.devices, clipping
        )
        self._steps_per_call = StepsPerCall(fixed=ps_cluster.config.steps_per_call)
        self._replicas = Replicas.place(self.variables, ps_cluster.config.ps_replicas)
        self._lost: set[str] = set()
        """The devices whose variables were taken from replicas."""
        self._has_begun = False
        self._shared_evaluation = SharedEvaluation(ps_cluster, step, self.variables)
        # The state that no step changes reaches a trainer with its data, and is read only once.
        self._fixed = self.variables.fixed_state()
        fixed_spec = tuple(tf.TensorSpec(each.shape, each.dtype) for each in self._fixed)
        self._build((element_spec, fixed_spec) if self._fixed else element_spec)

    def _check_memory(self, host_variables: HostVariables) -> None:
        """Raise an error if a parameter server has not the memory for its buffers."""
        cluster, devices = self._ps_cluster.topology.cluster, self._ps_cluster.devices
        sizes = measure_stores(host_variables, len(devices))
        totals = [size.total for size in sizes]
        held = add_replicas(totals, self._ps_cluster.config.ps_replicas)
        copies = self._ps_cluster.config.save_in_background
        check_free_memory(
            [
                Need(task, cluster.addresses[task], device, total, size.copied * copies)
                for task, device, total, size in zip(
                    cluster.tasks(Role.PS), devices, held, sizes, strict=True
                )
            ]
        )

    @abstractmethod
    def _build(self, element_spec: ElementSpec) -> None:
        """Create what only this engine has, and trace its functions for such batches."""

    def count_evaluation_batches(self, data: Dataset) -> int | None:
        # The shards of an evaluation are others than those of the training.
        return self._shared_evaluation.count_batches()

    def _split_element(self, element: Batch) -> tuple[Batch, Sequence[Tensor]]:
        """Return the batch and the fixed state that an element of a trainer's data has."""
        batch, fixed = element if self._fixed else (element, ())
        return batch, fixed

    def push(self) -> None:
        self.variables.push()
        for copy in self._replicas.copies:
            copy.push()

    def rescue(self, step: int) -> Progress | None:
        """Go on with the replicas of lost parameter servers, if nothing else is lost."""
        if not self._replicas.copies or not self._has_begun:
            return None
        lost = find_lost(self.variables)
        rescued = self._replicas.replace(self.variables, lost) if lost else None
        if rescued is None:
            return None
        forget_errors()
        progress = self._end_calls(rescued, step)
        forget_errors()
        if progress is not None:
            self._lost = lost
            self.variables = rescued
            rescued.pull()
        return progress

    @abstractmethod
    def _end_calls(self, rescued: DeviceVariables, step: int) -> Progress | None:
        """Return what was done since the last report; None if the variables do not fit together."""

    def variable_bytes(self) -> dict[str, int]:
        held = [
            sum(
                math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
                for variable in (*store.weights, *store.state)
            )
            for store in self.variables.stores
        ]
        copies = 1 + len(self._replicas.copies)
        return {f"ps-{n}": size for n, size in enumerate(add_replicas(held, copies))}

    def _make_compute(self) -> Compute:
        """Return the function that computes one batch, in parts if they are accumulated."""
        return accumulate_parts(self._step, self._ps_cluster.config.accumulate)

    def _compile(self, compute: T) -> T:
        """Compile a function with XLA, if that is set."""
        xla = self._ps_cluster.config.xla
        return tf.function(compute, jit_compile=True) if xla else compute

    def set_learning_rate(self, value: float) -> None:
        for each in (self.variables, *self._replicas.copies):
            each.set_learning_rate(value)

    def finalize(self) -> bool:
        return self.variables.finalize()

    def is_interrupted(self) -> bool:
        return self._ps_cluster.is_interrupted()
