"""What the asynchronous and the synchronous engine on parameter servers have in common."""

from abc import abstractmethod

import tensorflow as tf

from phalanx.train.engines.base import TrainingEngine
from phalanx.train.engines.steps_per_call import StepsPerCall
from phalanx.train.loop.evaluation import SharedEvaluation
from phalanx.train.runtime.ps_cluster import ParameterServerCluster
from phalanx.train.step.accumulation import Compute, accumulate_parts
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import ElementSpec
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.host_variables import HostVariables


class ParameterServerEngine(TrainingEngine):
    """The variables on the parameter servers, the step, and the evaluation on all hosts."""

    def __init__(
        self,
        ps_cluster: ParameterServerCluster,
        step: StepFunction,
        host_variables: HostVariables,
        element_spec: ElementSpec,
        clipping: Clipping,
    ) -> None:
        config = ps_cluster.config
        self._ps_cluster = ps_cluster
        self._step = step
        self.variables: DeviceVariables = DeviceVariables.place(
            host_variables, ps_cluster.devices, clipping
        )
        compute = accumulate_parts(step, config.accumulate)
        self._compute: Compute = tf.function(compute, jit_compile=True) if config.xla else compute
        self._steps_per_call = StepsPerCall(fixed=config.steps_per_call)
        self._shared_evaluation = SharedEvaluation(ps_cluster, step, self.variables)
        self._build(element_spec)

    @abstractmethod
    def _build(self, element_spec: ElementSpec) -> None:
        """Create what only this engine has, and trace its functions for such batches."""

    def set_learning_rate(self, value: float) -> None:
        self.variables.set_learning_rate(value)

    def finalize(self) -> bool:
        return self.variables.finalize()

    def is_interrupted(self) -> bool:
        return self._ps_cluster.is_interrupted()
