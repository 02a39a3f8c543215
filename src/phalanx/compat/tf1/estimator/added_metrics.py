"""tf.contrib.estimator.add_metrics: an estimator with more metrics."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.compat.tf1.estimator.estimator import Estimator
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import EstimatorSpec, ModeKeys


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Any]]) -> Estimator:
    """Return an estimator with more metrics.

    Args:
        estimator: The estimator; the new one has the same model_dir.
        metric_fn: Returns metrics by name. It takes any of features, labels, predictions, config.

    Returns:
        The new estimator.
    """
    takes = inspect.signature(metric_fn).parameters

    def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        known = {"features": features, "labels": labels, "config": config}
        known["predictions"] = spec.predictions
        more = metric_fn(**{name: known[name] for name in takes})
        metrics = {**spec.eval_metric_ops, **more}
        replaced: EstimatorSpec = spec._replace(eval_metric_ops=metrics)
        return replaced

    return Estimator(model_fn, estimator.model_dir, estimator.config)
