"""The layout of a report: one vector of sums, which a step returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.step.report_values import read_means, set_norm, sum_values
from phalanx.train.types import Array, KerasVariable, Tensor


@dataclass
class ReportLayout:
    """Which sums a report has, in this order.

    [examples, values ..., examples that have each value ..., variables of the metrics ..., norm]

    Attributes:
        names: The names of the values.
        metric_variables: The variables of the metrics.
        has_norm: Whether it ends with the norm of the gradients.
    """

    names: list[str] = field(default_factory=lambda: ["loss"])
    metric_variables: list[KerasVariable] = field(default_factory=list)
    has_norm: bool = False

    @property
    def size(self) -> int:
        metrics = sum(int(np.prod(v.shape)) for v in self.metric_variables)
        return 1 + 2 * len(self.names) + metrics + self.has_norm

    @unconverted
    def make(
        self, values: Mapping[str, Tensor], count: Tensor, get_value: Callable[..., Tensor]
    ) -> Tensor:
        """Return the report of a batch from its means and the values of the metrics' variables."""
        sums = sum_values(self.names, values, count)
        metrics = [
            tf.reshape(tf.cast(get_value(v), tf.float32), [-1]) for v in self.metric_variables
        ]
        # An evaluation leaves it 0.
        norm = [tf.zeros([1])] if self.has_norm else []
        return tf.concat([tf.stack([count, *sums]), *metrics, *norm], 0)

    @unconverted
    def add_norm(self, report: Tensor, gradients: list[Tensor], loss_scale: Tensor) -> Tensor:
        """Return a report with the norm of the gradients, if it has one."""
        return set_norm(report, gradients, loss_scale) if self.has_norm else report

    def read_values(self, report: Array) -> dict[str, float]:
        """Return the means of the values over the examples that have them."""
        return read_means(self.names, report[1:])

    def read_metrics(self, report: Array) -> dict[int, Array]:
        """Return the variables of the metrics, by id."""
        start = 1 + 2 * len(self.names)
        sums: dict[int, Array] = {}
        for variable in self.metric_variables:
            size = int(np.prod(variable.shape))
            sums[id(variable)] = report[start : start + size].reshape(variable.shape)
            start += size
        return sums

    def read_norm(self, report: Array) -> float | None:
        """Return the mean norm of the gradients, if any were measured."""
        if not self.has_norm or not report[-1] > 0:
            return None
        return float(report[-1]) / float(report[0])
