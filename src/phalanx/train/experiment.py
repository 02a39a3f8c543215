"""Experiment: the model, the data and the step that the user writes."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import keras

from phalanx.errors import ConfigurationError
from phalanx.train.context import Context
from phalanx.train.types import Batch, Dataset, Loss, Metric, Model, Optimizer, Tensor

T = TypeVar("T")


class Experiment:
    """A model, its data, and how to train it.

    Derive from this class. A compiled model has its own loss, optimizer and metrics:

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

    Or pass functions: `Experiment(model=make_model, train_data=read, eval_data=read_test)`. A
    function that does not need the context may leave it out.

    To compute the loss yourself, write `train_step` (and `eval_step`). Phalanx computes the
    gradients of the mean over all examples of all replicas, and applies them:

        def train_step(self, model, batch):
            images, labels = batch
            logits = model(images, training=True)
            loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return {"loss": loss, "confidence": keras.ops.max(keras.ops.softmax(logits), axis=-1)}

    Args:
        model: `model()` or `model(context)`.
        train_data: `train_data(context)`.
        eval_data: `eval_data(context)`.
        loss: `loss(y_true, y_pred)`, a Keras loss, or its name.
        optimizer: `optimizer()` or `optimizer(context)`, a Keras optimizer, or its name.
        metrics: A list of Keras metrics or their names, or a function that returns one.
        train_step: `train_step(model, batch)`.
        eval_step: `eval_step(model, batch)`.
        name: The name for messages and exported models. By default, the name of the class.
    """

    name: str = ""

    def __init__(
        self,
        *,
        model: Callable[..., Model] | None = None,
        train_data: Callable[..., Dataset] | None = None,
        eval_data: Callable[..., Dataset] | None = None,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        metrics: Callable[[], Sequence[Metric]] | Sequence[Metric] | None = None,
        train_step: Callable[[Model, Batch], object] | None = None,
        eval_step: Callable[[Model, Batch], object] | None = None,
        name: str | None = None,
    ) -> None:
        # Each argument takes the place of the method or attribute of the same name.
        arguments = dict(locals())
        for key, value in arguments.items():
            if key != "self" and value is not None:
                setattr(self, key, value)

    # With *context and **options, type checkers accept any signature in a derived class.
    def model(self, *context: Any, **options: Any) -> Model:
        """Return the model: a Keras model, or any callable `tf.Module`.

        Args:
            context: The context, if the method takes one.
            options: Not used.

        Returns:
            The model.
        """
        raise ConfigurationError(f"{type(self).__name__} has no model: write model()")

    def train_data(self, *context: Any, **options: Any) -> Dataset:
        """Return this task's shard of the training data, in batches.

        Args:
            context: The context, with the shard and the batch size.
            options: Not used.

        Returns:
            A `tf.data.Dataset`.
        """
        raise ConfigurationError(
            f"{type(self).__name__} has no training data: write train_data(context)"
        )

    def eval_data(self, *context: Any, **options: Any) -> Dataset | None:
        """Return this task's shard of the evaluation data, in batches.

        Args:
            context: The context, with the shard and the batch size.
            options: Not used.

        Returns:
            A `tf.data.Dataset`, or None if the experiment is not evaluated.
        """
        return None

    def loss(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Compute the loss. A Keras loss or its name may take the place of this method.

        Args:
            y_true: The labels of a batch.
            y_pred: The predictions of the model.

        Returns:
            One value for each example, or their mean.
        """
        raise NotImplementedError

    def optimizer(self, *context: Any, **options: Any) -> Optimizer | None:
        """Return the optimizer. A Keras optimizer or its name may take the place of this method.

        Args:
            context: The context, if the method takes one.
            options: Not used.

        Returns:
            A Keras optimizer or its name, or None to use that of the compiled model.
        """
        return None

    def metrics(self) -> Sequence[Metric]:
        """Return Keras metrics to update with (y_true, y_pred)."""
        return []

    def train_step(self, model: Model, batch: Batch) -> Tensor | Mapping[str, Tensor]:
        """Compute the loss of a training batch.

        Args:
            model: The model.
            batch: One element of the training data.

        Returns:
            The loss, or a dict with `loss` and other values to average and report. Each is one
            value for each example, or their mean.
        """
        raise NotImplementedError

    def eval_step(self, model: Model, batch: Batch) -> Tensor | Mapping[str, Tensor]:
        """Compute the loss of an evaluation batch.

        Args:
            model: The model.
            batch: One element of the evaluation data.

        Returns:
            The same as `train_step`.
        """
        raise NotImplementedError

    def example_features(self) -> Mapping[str, Any] | None:
        """Return the features of a serialized Example, for the signature of an exported model.

        They have the form that `tf.io.parse_example` takes. None stands for one feature for each
        input of the model.
        """
        return None

    def preprocess(self, features: Batch) -> Batch:
        """Convert a batch of parsed Examples to the input of the model; exported with the model."""
        return features


def is_written(experiment: Experiment, name: str) -> bool:
    """Whether the user wrote the function of this name."""
    inherited = getattr(type(experiment), name) is getattr(Experiment, name)
    return name in vars(experiment) or not inherited


def call(function: Callable[..., T], context: Context) -> T:
    """Call a function, with the context if it has a parameter `context` or a required one."""
    takes_context = any(
        p.name == "context"
        or (p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty)
        for p in inspect.signature(function).parameters.values()
    )
    return function(context) if takes_context else function()


def make_optimizer(experiment: Experiment, model: Model, context: Context) -> Optimizer:
    """Return the optimizer of the experiment, or that of the compiled model."""
    optimizer: Optimizer = experiment.optimizer
    if callable(optimizer) and not isinstance(optimizer, keras.optimizers.Optimizer):
        optimizer = call(optimizer, context)
    is_own = optimizer is not None
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ConfigurationError(
            f"{experiment_name(experiment)} has no optimizer: write optimizer(), or compile the "
            "model"
        )
    optimizer = keras.optimizers.get(optimizer)
    if optimizer.built and optimizer is not getattr(model, "optimizer", None):
        raise ConfigurationError(
            f"the optimizer {optimizer.name} is already used by another model: create a new one in "
            "model() or optimizer()"
        )
    # Keras has it since 3.15.
    if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
        raise ConfigurationError(
            "the optimizer is a MultiOptimizer, which has no learning rate of its own, and chooses "
            "its optimizers by variables that are trained in buffers: use one optimizer"
        )
    # As `compile` does: float16 gradients of a loss that is not scaled become zero.
    policy = getattr(getattr(model, "dtype_policy", None), "name", None)
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if is_own and policy == "mixed_float16" and not scales:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    return optimizer


def experiment_name(experiment: Experiment) -> str:
    """Return the name of an experiment for messages and exported models."""
    return experiment.name or type(experiment).__name__
