"""Which metrics can be summed over batches, replicas and hosts: their updates only add."""

from collections.abc import Sequence

import numpy as np

from phalanx.errors import ConfigurationError
from phalanx.train.types import KerasVariable, Metric, Tensor


def list_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return metrics with those that `compile` has put into one."""
    return [part for metric in metrics for part in getattr(metric, "metrics", None) or [metric]]


def needs_check(metric: Metric) -> bool:
    """Whether a metric is no part of Keras, whose metrics are all sums."""
    return not type(metric).__module__.startswith("keras.")


def find_metric(metrics: Sequence[Metric], variables: Sequence[KerasVariable]) -> Metric | None:
    """Return the first metric that has one of these variables, or does not begin with zeros."""
    wanted = {id(variable) for variable in variables}
    for metric in metrics:
        if any(id(v) in wanted or np.any(v.numpy()) for v in metric.variables):
            return metric
    return None


def refuse_metric(metric: Metric) -> ConfigurationError:
    """Return the error for a metric that is no sum."""
    return ConfigurationError(
        f"the metric {metric.name} ({type(metric).__name__}) is not a sum: its variables must "
        "begin with zeros, and update_state must only add to them, so that batches and replicas "
        "can be summed. Compute it from sums, or return its value from train_step and eval_step, "
        "which averages it over the examples"
    )


def is_sum(new: Tensor, old: Tensor) -> bool:
    """Whether the graph of a tensor only adds to another one, whatever that is."""
    if new is old:
        return True
    inputs = list(new.op.inputs)
    if new.op.type == "Identity":
        return is_sum(inputs[0], old)
    if new.op.type == "SelectV2":
        condition, *branches = inputs
        return all(is_sum(branch, old) for branch in branches) and not _depends(condition, old)
    if new.op.type in ("AddV2", "AddN", "Sub"):
        dependent = [i for i, value in enumerate(inputs) if _depends(value, old)]
        is_subtracted = new.op.type == "Sub" and dependent != [0]
        return len(dependent) == 1 and not is_subtracted and is_sum(inputs[dependent[0]], old)
    return False


def _depends(tensor: Tensor, on: Tensor) -> bool:
    """Whether a tensor is computed from another one."""
    waiting, seen = [tensor], set()
    while waiting:
        value = waiting.pop()
        if value is on:
            return True
        if value.op not in seen:
            seen.add(value.op)
            waiting += value.op.inputs
    return False
