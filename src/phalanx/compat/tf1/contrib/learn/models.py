"""tf.contrib.learn.Estimator and what its model_fn returned, over tf.estimator."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from phalanx.compat.tf1.estimator import estimator
from phalanx.compat.tf1.estimator.export import ExportOutput, PredictOutput, ServingInputReceiver
from phalanx.compat.tf1.estimator.specs import EstimatorSpec
from phalanx.errors import ConfigurationError


class ModeKeys:
    """What a model_fn is called for."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"


class ModelFnOps(NamedTuple):
    """What a model_fn of contrib.learn returned; see `tf.estimator.EstimatorSpec`.

    Args:
        mode: One of `ModeKeys`.
        predictions: A tensor or a dict of tensors.
        loss: A scalar.
        train_op: The operation of a training step.
        eval_metric_ops: Metrics by name.
        output_alternatives: Pairs of a problem type and a dict of tensors, by name.
        training_chief_hooks: Hooks for training on the chief only.
        training_hooks: Hooks for training.
        scaffold: A `tf.train.Scaffold`.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    output_alternatives: Mapping[str, Any] | None = None
    training_chief_hooks: Sequence[Any] | None = None
    training_hooks: Sequence[Any] | None = None
    scaffold: Any = None

    def to_spec(self) -> EstimatorSpec:
        """Return the same as an EstimatorSpec."""
        outputs: dict[str, ExportOutput] = {
            name or "serving_default": PredictOutput(tensors)
            for name, (_, tensors) in (self.output_alternatives or {}).items()
        }
        if not outputs and self.predictions is not None and self.mode == ModeKeys.INFER:
            outputs["serving_default"] = PredictOutput(self.predictions)
        return EstimatorSpec(
            self.mode,
            self.predictions,
            self.loss,
            self.train_op,
            self.eval_metric_ops,
            outputs or None,
            self.training_chief_hooks,
            self.training_hooks,
            self.scaffold,
        )


class MetricSpec(NamedTuple):
    """A metric of an evaluation, for `Estimator.evaluate(metrics=...)`.

    Args:
        metric_fn: A function of `tf.metrics`.
        prediction_key: The prediction that it measures; None for the only one.
        label_key: The label that it measures; None for the only one.
        weight_key: The feature that weights the examples.
    """

    metric_fn: Callable[..., Any]
    prediction_key: str | None = None
    label_key: str | None = None
    weight_key: str | None = None

    def create(self, features: Any, labels: Any, predictions: Any) -> Any:
        """Return (value, update_op) of the metric."""
        label = labels[self.label_key] if self.label_key else labels
        prediction = predictions
        if self.prediction_key:
            prediction = predictions[self.prediction_key]
        elif isinstance(predictions, Mapping):
            [prediction] = predictions.values()
        weights = {"weights": features[self.weight_key]} if self.weight_key else {}
        return self.metric_fn(label, prediction, **weights)


class InputFnOps(NamedTuple):
    """What a serving_input_fn of contrib.learn returned; see `ServingInputReceiver`.

    Args:
        features: The features for the model_fn.
        labels: None.
        default_inputs: The placeholders that requests fill.
    """

    features: Any
    labels: Any
    default_inputs: Any

    def to_receiver(self) -> ServingInputReceiver:
        """Return the same as a ServingInputReceiver."""
        return ServingInputReceiver(self.features, self.default_inputs)


def adapt_receiver_fn(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return a serving_input_receiver_fn from one that may return InputFnOps."""

    def receive() -> Any:
        received = function()
        return received.to_receiver() if isinstance(received, InputFnOps) else received

    return receive


class Estimator(estimator.Estimator):
    """As `tf.estimator.Estimator`, with `fit`, and with what model functions returned in 2017.

    Args:
        model_fn: Returns an EstimatorSpec, ModelFnOps or (predictions, loss, train_op).
        model_dir: The directory of checkpoints and summaries.
        config: A `RunConfig`.
        params: Hyperparameters for the model_fn.
        feature_engineering_fn: Changes features and labels before the model_fn gets them.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: Any = None,
        params: Any = None,
        feature_engineering_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._metrics: Mapping[str, MetricSpec] = {}
        taken = list(inspect.signature(model_fn).parameters)
        # Old functions call their arguments as they like.
        order = ["features", "labels", *(n for n in taken[2:] if n in ("mode", "params", "config"))]

        def call(
            features: Any,
            labels: Any = None,
            mode: str = "",
            params: Any = None,
            config: Any = None,
        ) -> EstimatorSpec:
            if feature_engineering_fn is not None:
                features, labels = feature_engineering_fn(features, labels)
            known = {"features": features, "labels": labels}
            known |= {"mode": mode, "params": params, "config": config}
            returned = model_fn(*(known[name] for name in order[: len(taken)]))
            spec = _to_spec(mode, returned)
            metrics = {
                name: each.create(features, labels, spec.predictions)
                for name, each in self._metrics.items()
                if mode == ModeKeys.EVAL
            }
            return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **metrics})

        super().__init__(call, model_dir, config, params)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        monitors: Sequence[Any] | None = None,
        max_steps: int | None = None,
    ) -> Self:
        """Train the model; see `tf.estimator.Estimator.train`.

        Args:
            x: Not supported.
            y: Not supported.
            input_fn: Returns (features, labels), or a dataset of such pairs.
            steps: Train for so many steps.
            batch_size: Not supported.
            monitors: Hooks.
            max_steps: Train up to this global step.

        Returns:
            This estimator.
        """
        if input_fn is None or x is not None or y is not None or batch_size is not None:
            raise ConfigurationError(
                "tf.contrib.learn.Estimator.fit takes an input_fn, not x, y and batch_size: use "
                "tf.estimator.inputs.numpy_input_fn"
            )
        return self.train(input_fn, monitors, steps, max_steps)

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
        metrics: Mapping[str, MetricSpec] | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint; see `tf.estimator.Estimator.evaluate`.

        Args:
            input_fn: Returns (features, labels), or a dataset of such pairs.
            steps: The number of batches.
            hooks: Hooks.
            checkpoint_path: The checkpoint; by default the latest.
            name: Distinguishes several evaluations.
            metrics: Metrics besides those of the model_fn, by name.

        Returns:
            The metrics by name.
        """
        self._metrics = metrics or {}
        return super().evaluate(input_fn, steps, hooks, checkpoint_path, name)


def _to_spec(mode: str, returned: Any) -> EstimatorSpec:
    if isinstance(returned, EstimatorSpec):
        return returned
    if isinstance(returned, ModelFnOps):
        return returned.to_spec()
    if isinstance(returned, tuple) and len(returned) == 3:
        return ModelFnOps(mode, *returned).to_spec()
    raise ValueError(
        f"the model_fn returned a {type(returned).__name__}: return an EstimatorSpec, ModelFnOps, "
        "or (predictions, loss, train_op)"
    )
