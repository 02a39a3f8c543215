"""Learning-rate schedules for large batches."""

from typing import Any, Self

import keras
import tensorflow as tf

from phalanx.train.types import Tensor


@keras.saving.register_keras_serializable(package="phalanx")
class LinearScaling(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Linear scaling with warm-up: multiplies the learning rate by the number of replicas.

    The rate grows from `learning_rate` to `replicas * learning_rate` within `warmup_steps` steps:

        def optimizer(self, context):
            return keras.optimizers.SGD(
                phalanx.LinearScaling(0.1, replicas=context.num_replicas, warmup_steps=500)
            )

    Args:
        learning_rate: The learning rate of one replica: a number, or another schedule.
        replicas: The number of replicas.
        warmup_steps: How many steps the warm-up takes.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        replicas: int,
        warmup_steps: int = 0,
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.replicas = replicas
        self.warmup_steps = warmup_steps

    def __call__(self, step: int | Tensor) -> float | Tensor:
        base = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        if self.warmup_steps == 0:
            return base * float(self.replicas)
        fraction = tf.minimum(tf.cast(step, tf.float32) / float(self.warmup_steps), 1.0)
        return base * (1.0 + (self.replicas - 1) * fraction)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": keras.saving.serialize_keras_object(self.learning_rate),
            "replicas": self.replicas,
            "warmup_steps": self.warmup_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        rate = keras.saving.deserialize_keras_object(config["learning_rate"])
        return cls(rate, config["replicas"], config["warmup_steps"])
