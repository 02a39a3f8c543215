"""What a model_fn returns, and what `train_and_evaluate` is told."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.export import ExportOutput
from phalanx.compat.tf1.estimator.exporters import Exporter, list_exporters
from phalanx.train.model_dir.index_check import check_index


class ModeKeys:
    """What a model_fn is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _EstimatorSpecFields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: Mapping[str, Any]
    export_outputs: Mapping[str, ExportOutput] | None
    training_chief_hooks: tuple[Any, ...]
    training_hooks: tuple[Any, ...]
    scaffold: Any
    evaluation_hooks: tuple[Any, ...]
    prediction_hooks: tuple[Any, ...]


class EstimatorSpec(_EstimatorSpecFields):
    """What a model_fn returns: the operations of the graph that it has built.

    Args:
        mode: One of `ModeKeys`, as the model_fn was given it.
        predictions: A tensor or a dict of tensors; needed to predict.
        loss: A scalar; needed to train and to evaluate.
        train_op: The operation of a training step; needed to train.
        eval_metric_ops: Metrics by name, as `tf.metrics` functions return them.
        export_outputs: The signatures of an export by name.
        training_chief_hooks: Hooks for training on the chief only.
        training_hooks: Hooks for training.
        scaffold: A `tf.train.Scaffold` that initializes and saves the variables.
        evaluation_hooks: Hooks for evaluation.
        prediction_hooks: Hooks for prediction.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, ExportOutput] | None = None,
        training_chief_hooks: Sequence[Any] | None = None,
        training_hooks: Sequence[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Sequence[Any] | None = None,
        prediction_hooks: Sequence[Any] | None = None,
    ) -> "EstimatorSpec":
        if mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"EstimatorSpec: mode is {mode!r}: pass on the mode of the model_fn")
        if mode == ModeKeys.TRAIN and train_op is None:
            raise ValueError(
                "the model_fn returned no train_op in mode TRAIN: return EstimatorSpec(mode, "
                "loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step()))"
            )
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            if loss is None:
                raise ValueError(f"the model_fn returned no loss in mode {mode!r}: set loss=")
            loss = _check_loss(loss)
        if mode == ModeKeys.PREDICT and predictions is None:
            raise ValueError("the model_fn returned no predictions in mode PREDICT: set them")
        hooks = (training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks)
        chief, train, evaluation, prediction = (_check_hooks(each) for each in hooks)
        return super().__new__(
            cls,
            mode=mode,
            predictions={} if predictions is None else predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=_check_metrics(eval_metric_ops or {}),
            export_outputs=_check_outputs(export_outputs),
            training_chief_hooks=chief,
            training_hooks=train,
            scaffold=scaffold or tf.train.Scaffold(),
            evaluation_hooks=evaluation,
            prediction_hooks=prediction,
        )


def _check_loss(loss: Any) -> Any:
    try:
        loss = tf.convert_to_tensor(loss)
    except (TypeError, ValueError) as error:
        hint = " (a Keras 3 object does not work in a graph: use tf.keras or tf.layers)"
        keras = type(loss).__module__.startswith("keras.")
        raise ValueError(
            f"the loss is a {type(loss).__name__}, not a tensor{hint if keras else ''}: {error}"
        ) from None
    if loss.shape.ndims is not None and loss.shape.num_elements() != 1:
        raise ValueError(f"the loss has the shape {loss.shape}: it must be a scalar")
    return tf.reshape(loss, []) if loss.shape.ndims != 0 else loss


def _check_hooks(hooks: Sequence[Any] | None) -> tuple[Any, ...]:
    for each in hooks or ():
        if not isinstance(each, tf.train.SessionRunHook):
            raise TypeError(f"{each!r} is not a hook: derive it from tf.train.SessionRunHook")
    return tuple(hooks or ())


def _check_metrics(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(metrics, Mapping):
        raise TypeError(f"eval_metric_ops is a {type(metrics).__name__}: it must be a dict")
    for name, each in metrics.items():
        if not hasattr(each, "updates") and (not isinstance(each, tuple) or len(each) != 2):
            raise TypeError(
                f"the metric {name!r} is {each!r}: it must be (value, update_op), as the functions "
                "of tf.metrics return it, or a tf.keras.metrics.Metric"
            )
    return metrics


def _check_outputs(
    outputs: Mapping[str, ExportOutput] | None,
) -> Mapping[str, ExportOutput] | None:
    for name, each in (outputs or {}).items():
        if not isinstance(each, ExportOutput):
            raise TypeError(
                f"export_outputs[{name!r}] is a {type(each).__name__}: use PredictOutput, "
                "ClassificationOutput or RegressionOutput of tf.estimator.export"
            )
    return outputs


class _TrainSpecFields(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[Any, ...]
    saving_listeners: tuple[Any, ...]


class TrainSpec(_TrainSpecFields):
    """How `train_and_evaluate` trains.

    Args:
        input_fn: Returns the features and labels of training, or a dataset of both.
        max_steps: The global step at which training ends; None trains until the data ends.
        hooks: Hooks of training.
        saving_listeners: `tf.train.CheckpointSaverListener`s.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> "TrainSpec":
        _check_input_fn("TrainSpec", input_fn)
        _check_at_least("TrainSpec", 1, max_steps=max_steps)
        listeners = tuple(saving_listeners or ())
        return super().__new__(cls, input_fn, max_steps, _check_hooks(hooks), listeners)


class _EvalSpecFields(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[Any, ...]
    exporters: tuple[Exporter, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalSpecFields):
    """How `train_and_evaluate` evaluates and exports.

    Args:
        input_fn: Returns the features and labels of evaluation, or a dataset of both.
        steps: The number of batches; None evaluates until the data ends.
        name: Distinguishes several evaluations: results go to `eval_NAME`.
        hooks: Hooks of evaluation.
        exporters: An exporter, or several, that are called after each evaluation.
        start_delay_secs: How long after its start an evaluator evaluates first.
        throttle_secs: The shortest time between the starts of two evaluations.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Sequence[Any] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> "EvalSpec":
        _check_input_fn("EvalSpec", input_fn)
        _check_at_least("EvalSpec", 1, steps=steps)
        _check_at_least(
            "EvalSpec", 0, start_delay_secs=start_delay_secs, throttle_secs=throttle_secs
        )
        if name is not None and not isinstance(name, str):
            raise TypeError(f"EvalSpec: name is {name!r}: it must be a string")
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            _check_hooks(hooks),
            list_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def _check_input_fn(spec: str, input_fn: object) -> None:
    if not callable(input_fn):
        kind = type(input_fn).__name__
        raise TypeError(f"{spec}: input_fn is a {kind}: pass a function that returns the data")


def _check_at_least(spec: str, least: int, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"{spec}: {name} is {value}: it must be at least {least}")


class WarmStartSettings(NamedTuple):
    """Which variables start with the values of a checkpoint.

    Args:
        ckpt_to_initialize_from: A checkpoint, a directory with checkpoints, or a SavedModel.
        vars_to_warm_start: A regular expression or a list of variables; None for none that train.
        var_name_to_vocab_info: A `tf.train.VocabInfo` by the name of the variable.
        var_name_to_prev_var_name: The name in the checkpoint by the name in the graph.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def make_warm_start(given: str | WarmStartSettings | None) -> WarmStartSettings | None:
    """Return the settings of a warm start, which may be given as the path of a checkpoint."""
    if given is None or isinstance(given, WarmStartSettings):
        return given
    if isinstance(given, (str, os.PathLike)):
        return WarmStartSettings(os.fspath(given))
    raise ValueError(
        f"warm_start_from is {given!r}: name a checkpoint, or pass tf.estimator.WarmStartSettings"
    )


def find_warm_start(given: WarmStartSettings) -> str:
    """Return the checkpoint of a warm start, which may be that of a directory or a SavedModel."""
    path = os.fspath(given.ckpt_to_initialize_from)
    found: str | None = tf.train.latest_checkpoint(path) if tf.gfile.IsDirectory(path) else path
    if tf.gfile.Exists(f"{path}/saved_model.pb"):
        found = f"{path}/variables/variables"
    if found is None or not tf.train.checkpoint_exists(found):
        raise ValueError(
            f"warm_start_from is {path}, but there is no checkpoint: name a checkpoint, as in "
            "runs/census/model.ckpt-100, a directory with checkpoints, or a SavedModel"
        )
    check_index(found)
    return found
