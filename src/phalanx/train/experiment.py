"""What the user writes: what to train."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from phalanx.errors import ConfigurationError
from phalanx.train.context import Context

Function = Callable[..., Any]


class Experiment:
    """A model, its data, and how it learns. Written once, trained anywhere.

    Derive from it. A model that is compiled brings its own loss, optimizer and metrics:

        class Digits(phalanx.Experiment):
            def model(self):
                model = keras.Sequential([keras.Input((28, 28, 1)), ...])
                model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
                return model

            def train_data(self, context):
                data = digits("train").shard(context.num_shards, context.shard)
                return data.shuffle(10_000).batch(context.batch_size)

            def eval_data(self, context):
                data = digits("test").shard(context.num_shards, context.shard)
                return data.batch(context.batch_size)

    Or give functions: `Experiment(model=make_model, train_data=read, eval_data=read_test)`. Every
    function may leave out the context if it has no use for it.

    To own the inner step, write `train_step` (and `eval_step`). Phalanx takes the gradients, of the
    mean over all examples of all replicas, and applies them:

        def train_step(self, model, batch):
            images, labels = batch
            logits = model(images, training=True)
            loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return {"loss": loss, "confidence": keras.ops.max(keras.ops.softmax(logits), axis=-1)}
    """

    def __init__(
        self,
        *,
        model: Function | None = None,
        train_data: Function | None = None,
        eval_data: Function | None = None,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        train_step: Function | None = None,
        eval_step: Function | None = None,
        name: str | None = None,
    ) -> None:
        given = {
            "model": model,
            "train_data": train_data,
            "eval_data": eval_data,
            "loss": loss,
            "optimizer": optimizer,
            "metrics": metrics,
            "train_step": train_step,
            "eval_step": eval_step,
            "name": name,
        }
        for key, value in given.items():
            if value is not None:
                setattr(self, key, value)

    name: str = ""

    def model(self, context: Context) -> Any:
        """A Keras model, compiled or not, or any callable `tf.Module`."""
        raise ConfigurationError(f"{type(self).__name__} has no model: write model()")

    def train_data(self, context: Context) -> Any:
        """A `tf.data.Dataset` of this task's share of the examples, in batches."""
        raise ConfigurationError(
            f"{type(self).__name__} has nothing to train on: write train_data(context)"
        )

    def eval_data(self, context: Context) -> Any:
        """The same for evaluation; None if there is none."""
        return None

    def loss(self, y_true: Any, y_pred: Any) -> Any:
        """One number an example, or their mean. A Keras loss or its name will do as well."""
        raise NotImplementedError

    def optimizer(self, context: Context) -> Any:
        """A Keras optimizer. A name will do as well."""
        return None

    def metrics(self) -> Sequence[Any]:
        """Keras metrics, each fed with (y_true, y_pred)."""
        return []

    def train_step(self, model: Any, batch: Any) -> Any:
        """The loss of a batch, or a dict with it (`loss`) and other values to average and show."""
        raise NotImplementedError

    def eval_step(self, model: Any, batch: Any) -> Any:
        """The same for evaluation."""
        raise NotImplementedError


def is_written(experiment: Experiment, name: str) -> bool:
    """Whether the user wrote that function."""
    return name in vars(experiment) or getattr(type(experiment), name) is not getattr(
        Experiment, name
    )


def call(function: Any, *arguments: Any) -> Any:
    """Call with as many of the arguments as it takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return function(*arguments)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return function(*arguments[: len(positional)])


def make_optimizer(experiment: Experiment, model: Any, context: Context) -> Any:
    """The experiment's optimizer, or the compiled model's."""
    optimizer: Any = experiment.optimizer
    if callable(optimizer) and not isinstance(optimizer, keras.optimizers.Optimizer):
        optimizer = call(optimizer, context)
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ConfigurationError(
            f"{experiment_name(experiment)} has no optimizer: write optimizer(), or compile the model"
        )
    optimizer = keras.optimizers.get(optimizer)
    if optimizer.built:
        raise ConfigurationError(
            f"the optimizer {optimizer.name} is already in use by another model: make a new one in "
            "model() or optimizer()"
        )
    return optimizer


def experiment_name(experiment: Experiment) -> str:
    """What to call it in messages and summaries."""
    return experiment.name or type(experiment).__name__
