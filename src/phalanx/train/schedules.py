"""Learning rates for large batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="phalanx")
class LinearScaling(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """The linear rule with warm-up: k replicas, k times the rate, reached in small steps.

    The rate goes up from `learning_rate` to `replicas * learning_rate` within `warmup_steps`.
    What comes after the warm-up may be another schedule, which is multiplied too:

        def optimizer(self, context):
            return keras.optimizers.SGD(
                phalanx.LinearScaling(0.1, replicas=context.num_replicas, warmup_steps=500)
            )
    """

    def __init__(self, learning_rate: Any, replicas: int, warmup_steps: int = 0) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.replicas = replicas
        self.warmup_steps = warmup_steps

    def __call__(self, step: Any) -> Any:
        """The rate of a step."""
        base = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        if self.warmup_steps == 0:
            return base * float(self.replicas)
        done = tf.minimum(tf.cast(step, tf.float32) / float(self.warmup_steps), 1.0)
        return base * (1.0 + (self.replicas - 1) * done)

    def get_config(self) -> dict[str, Any]:
        """What it was made with."""
        return {
            "learning_rate": keras.saving.serialize_keras_object(self.learning_rate),
            "replicas": self.replicas,
            "warmup_steps": self.warmup_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LinearScaling:
        """Make it again."""
        rate = keras.saving.deserialize_keras_object(config["learning_rate"])
        return cls(rate, config["replicas"], config["warmup_steps"])
