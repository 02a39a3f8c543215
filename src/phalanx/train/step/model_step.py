"""A `train_step` or `test_step` that a model overrides."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.experiment import Experiment, experiment_name, is_written
from phalanx.train.step.metric_sums import list_metrics
from phalanx.train.step.optimizer_calls import (
    HandleCall,
    OptimizerCall,
    find_optimizers,
    handle_calls,
)
from phalanx.train.types import Batch, KerasVariable, Model, Optimizer, Tensor


def overrides(model: Model, method: str) -> bool:
    """Whether a model has a method of its own, such as `train_step`."""
    inherited = getattr(type(model), method) is getattr(keras.Model, method)
    return method in vars(model) or not inherited


class ModelStep:
    """A step that runs as the model has it, while variables are tensors and optimizers wait.

    Args:
        model: A compiled model.
        method: "train_step" or "test_step".
    """

    def __init__(self, model: Model, method: str) -> None:
        self.model = model
        self.method = method
        self.label = f"{method} of {type(model).__name__}"
        self.optimizers = find_optimizers(model)
        # As in Keras, which does not convert the step either.
        self._function = tf.autograph.experimental.do_not_convert(getattr(model, method))

    def build(self, batch: Batch) -> dict[str, Tensor]:
        """Run the step as Keras does, in a trace: this creates the variables."""
        return self._check(self._function(batch))

    def run(self, batch: Batch, handle: HandleCall) -> dict[str, Tensor]:
        """Run the step inside a `TapeScope`; a handler takes the calls of optimizers."""
        graph = tf.compat.v1.get_default_graph()

        def check_and_handle(call: OptimizerCall) -> None:
            if tf.compat.v1.get_default_graph() is not graph:
                raise ConfigurationError(
                    f"{self.label} applies gradients inside tf.cond or a loop of TensorFlow: call "
                    "the optimizer at every step, with gradients of zero where nothing should "
                    "change, or use a loop of Python"
                )
            handle(call)

        with handle_calls(list(self.optimizers.values()), check_and_handle):
            try:
                return self._check(self._function(batch))
            except AttributeError as error:
                if "_unique_id" not in str(error):
                    raise
                raise ConfigurationError(
                    f"{self.label} applies gradients with an optimizer that is no attribute of the "
                    "model: assign it to an attribute, so that it is also saved"
                ) from error

    def refuse_call(self, call: OptimizerCall) -> None:
        """Handle a call of an optimizer in an evaluation."""
        raise ConfigurationError(
            f"{self.label} calls the optimizer {self.name_of(call.optimizer)}: an evaluation must "
            "not change the model"
        )

    def name_of(self, optimizer: Optimizer) -> str:
        """Return the name of the attribute that an optimizer is."""
        names = [name for name, value in self.optimizers.items() if value is optimizer]
        return names[0] if names else optimizer.name

    def refuse_assignment(self, variable: KerasVariable) -> None:
        raise ConfigurationError(
            f"{self.label} assigns {variable.path}, which is no variable of the model, and would "
            "not be saved: create it with self.add_weight, or assign its layer to an attribute"
        )

    def unlisted_variables(self) -> list[KerasVariable]:
        """Return the variables of metrics that the property `metrics` of the model leaves out."""
        listed = {id(metric) for metric in list_metrics(self.model.metrics)}
        tracked = list_metrics(keras.Model.metrics.fget(self.model))
        return [v for metric in tracked if id(metric) not in listed for v in metric.variables]

    def _check(self, returned: object) -> dict[str, Tensor]:
        if not isinstance(returned, Mapping) or not returned:
            raise ConfigurationError(
                f"{self.label} returned {returned!r}: return a dict with at least one value, such "
                "as {'loss': loss}"
            )
        return _flatten(returned)


def _flatten(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return values without nested dicts, which the results of compiled metrics are."""
    flat: dict[str, Tensor] = {}
    for name, value in values.items():
        flat |= _flatten(value) if isinstance(value, Mapping) else {name: value}
    return flat


def find_model_step(
    experiment: Experiment, model: Model, method: str, ours: str
) -> ModelStep | None:
    """Return a step that the model overrides and the experiment does not write.

    The step of Keras returns what `compute_metrics` does, so that overriding it changes the step.
    """
    if not isinstance(model, keras.Model) or is_written(experiment, ours):
        return None
    if not overrides(model, method) and not overrides(model, "compute_metrics"):
        return None
    for name in ("loss", "optimizer", "metrics"):
        if is_written(experiment, name):
            raise ConfigurationError(
                f"{type(model).__name__} overrides {method}, which does not use {name} of "
                f"{experiment_name(experiment)}: leave {name} out and compile the model, or write "
                f"{ours}(model, batch) in the experiment"
            )
    if not model.compiled:
        raise ConfigurationError(
            f"{type(model).__name__} overrides {method}, but is not compiled: call its compile, "
            f"or write {ours}(model, batch) in the experiment"
        )
    return ModelStep(model, method)


def label_values(step: ModelStep, returned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name the values of a step that the model overrides, which may return others than ours."""
    return {f"{step.method}/{name}": value for name, value in returned.items()}


def find_labeled(method: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a step that the model overrides, by the names that it gave them."""
    label = f"{method}/"
    return {n.removeprefix(label): v for n, v in values.items() if n.startswith(label)}
