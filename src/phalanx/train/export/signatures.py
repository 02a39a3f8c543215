"""What can be asked of a trained model: named tensors in, named tensors out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.experiment import Experiment, is_written

RAW = "serving_default"
EXAMPLES = "serving_examples"

# Names that Keras makes up and numbers as it goes.
_MADE_UP = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?$")

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Servable:
    """A model's signatures: functions of named tensors, and the inputs they take.

    `serving_default` takes the model's own inputs, `serving_examples` serialized Examples, which it
    parses and preprocesses itself.
    """

    signatures: Mapping[str, Callable[..., Tensors]]
    inputs: Mapping[str, Mapping[str, Any]]
    """For each signature its `tf.TensorSpec`s by name."""


def make_servable(experiment: Experiment, model: Any, input_spec: Any = None) -> Servable:
    """The signatures of a model, from its own inputs, or from what its data gives it."""
    structure = _find_structure(model, input_spec)
    specs = {name: _any_batch(spec, name) for name, spec in structure.items()}
    is_single = not isinstance(_layout(model, input_spec), dict | list | tuple)

    def arrange(values: Mapping[str, Any]) -> Any:
        layout = _layout(model, input_spec)
        if is_single:
            return next(iter(values.values()))
        return dict(values) if isinstance(layout, dict) else type(layout)(values.values())

    def predict(*values: Any) -> Tensors:
        return _name_outputs(_forward(model, arrange(dict(zip(specs, values, strict=True)))))

    signatures: dict[str, Callable[..., Tensors]] = {RAW: predict}
    inputs: dict[str, dict[str, Any]] = {RAW: specs}
    features = _find_features(experiment, specs)
    if features is not None:

        def predict_examples(examples: Any) -> Tensors:
            parsed = tf.io.parse_example(examples, features)
            if is_written(experiment, "preprocess") or is_written(experiment, "example_features"):
                return _name_outputs(_forward(model, experiment.preprocess(parsed)))
            cast = {name: tf.cast(parsed[name], spec.dtype) if parsed[name].dtype != spec.dtype
                    else parsed[name] for name, spec in specs.items()}  # fmt: skip
            return _name_outputs(_forward(model, arrange(cast)))

        signatures[EXAMPLES] = predict_examples
        inputs[EXAMPLES] = {"examples": tf.TensorSpec([None], tf.string, "examples")}
    return Servable(signatures, inputs)


@dataclass(frozen=True)
class Signature:
    """One thing to ask a model, ready to be called with tensors by name."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    call: Callable[..., Mapping[str, Any]]


def trace(servable: Servable) -> dict[str, Signature]:
    """Signatures to call in this process."""
    found = {}
    for name, function in servable.signatures.items():
        inputs = servable.inputs[name]
        traced = tf.function(function, input_signature=list(inputs.values()))
        concrete = traced.get_concrete_function()
        found[name] = Signature(inputs, concrete.structured_outputs, _by_name(concrete, inputs))
    return found


def load_signatures(path: str) -> dict[str, Signature]:
    """Signatures of a SavedModel."""
    try:
        loaded = tf.saved_model.load(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is no SavedModel: {error}") from None
    found = {
        name: Signature(
            function.structured_input_signature[1],
            function.structured_outputs,
            _keep(loaded, function),
        )
        for name, function in loaded.signatures.items()
    }
    if not found:
        raise ConfigurationError(f"{path} has no signatures: export it with `phalanx export`")
    return found


def _by_name(function: Any, names: Mapping[str, Any]) -> Callable[..., Mapping[str, Any]]:
    return lambda **tensors: function(*(tensors[name] for name in names))


def _keep(loaded: Any, function: Any) -> Callable[..., Mapping[str, Any]]:
    """A signature does not keep its variables alive: the loaded model does."""

    def call(**tensors: Any) -> Mapping[str, Any]:
        assert loaded is not None
        return function(**tensors)  # type: ignore[no-any-return]

    return call


def _layout(model: Any, input_spec: Any) -> Any:
    """How inputs are put together: one alone, or several in a dict, list or tuple."""
    if input_spec is not None:
        return input_spec
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _find_structure(model: Any, input_spec: Any) -> dict[str, Any]:
    layout = _layout(model, input_spec)
    if isinstance(layout, dict):
        return dict(layout)
    if isinstance(layout, list | tuple):
        return {_name(value, f"input_{index}"): value for index, value in enumerate(layout)}
    return {_name(layout, "inputs"): layout}


def _name(value: Any, otherwise: str) -> str:
    name = getattr(value, "name", None)
    return otherwise if not name or _MADE_UP.match(name) else str(name)


def _any_batch(spec: Any, name: str) -> Any:
    if getattr(spec, "sparse", False) or getattr(spec, "ragged", False):
        raise ConfigurationError(
            f"the input {name} is sparse: an exported model takes dense tensors"
        )
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, name)


def _find_features(experiment: Experiment, specs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    written = experiment.example_features()
    if written is not None:
        return written
    if not all(spec.shape[1:].is_fully_defined() for spec in specs.values()):
        return None
    return {
        name: tf.io.FixedLenFeature(spec.shape[1:], _stored_dtype(spec.dtype))
        for name, spec in specs.items()
    }


def _stored_dtype(dtype: Any) -> Any:
    """Examples know three types."""
    if dtype == tf.string:
        return tf.string
    return tf.float32 if dtype.is_floating else tf.int64


def _forward(model: Any, x: Any) -> Any:
    takes_training = isinstance(model, keras.Model) or (
        "training" in inspect.signature(model.__call__).parameters
    )
    return model(x, training=False) if takes_training else model(x)


def _name_outputs(returned: Any) -> Tensors:
    if isinstance(returned, Mapping):
        named = dict(returned)
    elif isinstance(returned, list | tuple):
        named = {f"output_{index}": value for index, value in enumerate(returned)}
    else:
        named = {"predictions": returned}
    return {name: _widen(tf.convert_to_tensor(value)) for name, value in named.items()}


def _widen(tensor: Any) -> Any:
    """Clients know no half-precision numbers."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.float16, tf.bfloat16) else tensor
