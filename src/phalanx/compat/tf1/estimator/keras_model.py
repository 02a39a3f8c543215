"""tf.keras.estimator.model_to_estimator: a Keras 2 model as an Estimator."""

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.estimator import Estimator
from phalanx.compat.tf1.estimator.export import PredictOutput
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import EstimatorSpec, ModeKeys
from phalanx.errors import ConfigurationError


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: Any = None,
    config: RunConfig | None = None,
    **settings_of_keras: Any,
) -> Estimator:
    """Return an Estimator that trains a compiled Keras 2 model.

    Args:
        keras_model: A compiled model of `tf.keras` under --tf1, which is Keras 2.
        keras_model_path: Or the file of a saved model.
        custom_objects: Classes and functions of the model by name.
        model_dir: The directory of checkpoints and summaries.
        config: A `RunConfig`.
        **settings_of_keras: What tf.keras passes besides; it is not used.

    Returns:
        The estimator. Training starts with the weights of the model.
    """
    keras = tf.keras
    if (keras_model is None) == (keras_model_path is None):
        raise ValueError("model_to_estimator: set keras_model or keras_model_path, one of them")
    if keras_model_path is not None:
        keras_model = keras.models.load_model(keras_model_path, custom_objects)
    # The names of version 1 of tf_keras lack the version.
    if getattr(keras, "__version__", "2").startswith("3") or not isinstance(
        keras_model, keras.Model
    ):
        raise ConfigurationError(
            f"model_to_estimator got a {type(keras_model).__module__}.{type(keras_model).__name__}:"
            " only a model of Keras 2 works in a graph. Under --tf1, build it with tf.keras; for a "
            "Keras 3 model use phalanx.Experiment"
        )
    if getattr(keras_model, "optimizer", None) is None:
        raise ValueError("model_to_estimator: compile the model first")
    architecture, weights = keras_model.get_config(), keras_model.get_weights()
    kind, names = type(keras_model), keras_model.input_names
    # Keras wraps an optimizer of tf.train, whose state is apart for each graph.
    native = getattr(keras_model.optimizer, "optimizer", None)
    if not isinstance(native, tf.train.Optimizer):
        native, optimizer_config = None, keras.optimizers.serialize(keras_model.optimizer)
    # Without eager execution, Keras names the compiled metrics after the loss.
    loss_name, metric_names = keras_model.loss, list(keras_model.metrics_names[1:])

    def build(features: Any, mode: str) -> tuple[Any, dict[str, Any]]:
        with keras.utils.custom_object_scope(dict(custom_objects or {})):
            model = kind.from_config(architecture)
        inputs = features
        if isinstance(features, Mapping):
            inputs = [features[name] for name in names]
            inputs = inputs[0] if len(inputs) == 1 else inputs
        outputs = model(inputs, training=mode == ModeKeys.TRAIN)
        return model, dict(zip(model.output_names, tf.nest.flatten(outputs), strict=True))

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        model, predictions = build(features, mode)
        if mode == ModeKeys.PREDICT:
            exported = {"serving_default": PredictOutput(predictions)}
            return EstimatorSpec(mode, predictions, export_outputs=exported)
        if len(predictions) != 1:
            raise ValueError(f"model_to_estimator: the model has the outputs {[*predictions]}")
        [output] = predictions.values()
        loss = tf.reduce_mean(keras.losses.get(loss_name)(labels, output))
        if model.losses:
            loss += tf.add_n(model.losses)
        if mode == ModeKeys.EVAL:
            metrics = _make_metrics(metric_names, labels, output)
            return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
        optimizer = native or keras.optimizers.get(optimizer_config)
        train_op = _minimize(optimizer, model, loss)
        scaffold = tf.train.Scaffold(init_fn=_make_assignment(model, weights))
        return EstimatorSpec(mode, predictions, loss, train_op, scaffold=scaffold)

    return Estimator(model_fn, model_dir, config)


def _make_assignment(model: Any, weights: Any) -> Any:
    """Return a function that gives a new session the weights of the original model."""
    holders = [tf.placeholder(each.dtype, each.shape) for each in model.weights]
    assign = [tf.assign(each, at) for each, at in zip(model.weights, holders, strict=True)]

    def initialize(scaffold: Any, session: Any) -> None:
        session.run(assign, dict(zip(holders, weights, strict=True)))

    return initialize


def _minimize(optimizer: Any, model: Any, loss: Any) -> Any:
    variables = model.trainable_variables
    gradients = zip(tf.gradients(loss, variables), variables, strict=True)
    with tf.control_dependencies([each for each in model.updates if tf.is_tensor(each)]):
        update = optimizer.apply_gradients(gradients)
    with tf.control_dependencies([update]):
        return tf.assign_add(tf.train.get_global_step(), 1).op


def _make_metrics(names: Any, labels: Any, output: Any) -> dict[str, Any]:
    metrics = {}
    for name in tf.nest.flatten(names or []):
        if name in ("accuracy", "acc"):
            is_single = output.shape[-1] == 1
            classes = tf.cast(output > 0.5, tf.int64) if is_single else tf.argmax(output, -1)
            if not is_single and labels.shape.ndims == output.shape.ndims:
                one_hot = labels.shape[-1] == output.shape[-1]
                labels = tf.argmax(labels, -1) if one_hot else tf.squeeze(labels, -1)
            metrics[str(name)] = tf.metrics.accuracy(labels, classes)
        else:
            metric = tf.keras.metrics.get(name)
            values = metric(labels, output)
            metrics[getattr(metric, "__name__", str(name))] = tf.metrics.mean(values)
    return metrics
