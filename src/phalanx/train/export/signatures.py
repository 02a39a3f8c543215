"""Serving signatures of a trained model: named tensors in, named tensors out."""

import contextlib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.experiment import Experiment, is_written
from phalanx.train.types import (
    Batch,
    DType,
    ElementSpec,
    Model,
    NamedArrays,
    NamedSpecs,
    NamedTensors,
    Tensor,
    TensorSpec,
    TFFunction,
)

DEFAULT_SIGNATURE = "serving_default"
EXAMPLES_SIGNATURE = "serving_examples"

# Names that Keras generates and numbers.
_GENERATED_NAME = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?$")


@dataclass(frozen=True)
class Servable:
    """The functions of a model to export, and their inputs.

    `serving_default` takes the model's own inputs. `serving_examples` takes serialized Examples,
    which it parses and preprocesses itself.
    """

    functions: Mapping[str, Callable[..., NamedTensors]]
    inputs: Mapping[str, NamedSpecs]


@dataclass(frozen=True)
class Signature:
    """A traced or loaded function, which is called with tensors by name."""

    inputs: NamedSpecs
    outputs: NamedSpecs
    call: Callable[..., NamedTensors]

    def predict(self, arrays: NamedArrays) -> NamedArrays:
        outputs = self.call(**{name: tf.constant(value) for name, value in arrays.items()})
        return {name: value.numpy() for name, value in outputs.items()}


def make_servable(experiment: Experiment, model: Model, input_spec: ElementSpec = None) -> Servable:
    """Make the serving functions of a model from its own inputs, or from those of its data."""
    if input_spec is None:
        input_spec = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    specs = {name: _make_spec(spec, name) for name, spec in _name_inputs(input_spec).items()}

    def predict(*values: Tensor) -> NamedTensors:
        tensors = dict(zip(specs, values, strict=True))
        return _name_outputs(_call(model, _arrange(tensors, input_spec)))

    functions = {DEFAULT_SIGNATURE: predict}
    inputs: dict[str, NamedSpecs] = {DEFAULT_SIGNATURE: specs}
    features = _find_features(experiment, specs)
    if features is not None:

        def predict_examples(examples: Tensor) -> NamedTensors:
            parsed = tf.io.parse_example(examples, features)
            if is_written(experiment, "preprocess") or is_written(experiment, "example_features"):
                return _name_outputs(_call(model, experiment.preprocess(parsed)))
            return predict(*(tf.cast(parsed[name], spec.dtype) for name, spec in specs.items()))

        functions[EXAMPLES_SIGNATURE] = predict_examples
        inputs[EXAMPLES_SIGNATURE] = {"examples": tf.TensorSpec([None], tf.string, "examples")}
    return Servable(functions, inputs)


def trace_signatures(servable: Servable) -> dict[str, Signature]:
    """Trace the functions of a servable, to call them in this process."""
    signatures = {}
    for name, function in servable.functions.items():
        inputs = servable.inputs[name]
        concrete = tf.function(function, input_signature=[*inputs.values()]).get_concrete_function()
        call = _call_by_name(concrete, inputs)
        signatures[name] = Signature(inputs, concrete.structured_outputs, call)
    return signatures


def load_signatures(path: str) -> dict[str, Signature]:
    """Load the signatures of a SavedModel."""
    try:
        with hide_log(logging.ERROR):
            model = tf.saved_model.load(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is not a SavedModel: {error}") from None
    signatures = {
        name: Signature(
            function.structured_input_signature[1],
            function.structured_outputs,
            _keep_alive(model, function),
        )
        for name, function in model.signatures.items()
    }
    if not signatures:
        raise ConfigurationError(f"{path} has no signatures: export it with `phalanx export`")
    return signatures


@contextlib.contextmanager
def hide_log(level: int) -> Iterator[None]:
    """Hide what TensorFlow logs below a level: temporary paths, and variables of TensorFlow 1."""
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def _call_by_name(function: TFFunction, names: NamedSpecs) -> Callable[..., NamedTensors]:
    return lambda **tensors: function(*(tensors[name] for name in names))


def _keep_alive(model: Model, function: TFFunction) -> Callable[..., NamedTensors]:
    """Bind a loaded model to its signature, which alone does not keep the variables alive."""

    def call(**tensors: Tensor) -> NamedTensors:
        assert model is not None
        return function(**tensors)  # type: ignore[no-any-return]

    return call


def _name_inputs(input_spec: ElementSpec) -> NamedSpecs:
    if isinstance(input_spec, dict):
        return input_spec
    if isinstance(input_spec, list | tuple):
        return {_find_name(value, f"input_{i}"): value for i, value in enumerate(input_spec)}
    return {_find_name(input_spec, "inputs"): input_spec}


def _find_name(value: TensorSpec, default: str) -> str:
    name = getattr(value, "name", None)
    return default if not name or _GENERATED_NAME.match(name) else str(name)


def _arrange(tensors: NamedTensors, input_spec: ElementSpec) -> Batch:
    """Put named tensors into the structure that the model takes."""
    if isinstance(input_spec, dict):
        return tensors
    if isinstance(input_spec, list | tuple):
        return type(input_spec)(tensors.values())
    return next(iter(tensors.values()))


def _make_spec(spec: TensorSpec, name: str) -> TensorSpec:
    """Return the spec of an input, for batches of any size."""
    if getattr(spec, "sparse", False) or getattr(spec, "ragged", False):
        raise ConfigurationError(
            f"the input {name} is sparse: an exported model takes dense tensors"
        )
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, name)


def _find_features(experiment: Experiment, specs: NamedSpecs) -> Mapping[str, object] | None:
    """Return what `tf.io.parse_example` takes; None if the shapes are not known."""
    features = experiment.example_features()
    if features is not None:
        return features
    if not all(spec.shape[1:].is_fully_defined() for spec in specs.values()):
        return None
    return {
        name: tf.io.FixedLenFeature(spec.shape[1:], _stored_dtype(spec.dtype))
        for name, spec in specs.items()
    }


def _stored_dtype(dtype: DType) -> DType:
    """Return which of the three types that an Example can hold a type is stored as."""
    if dtype == tf.string:
        return tf.string
    return tf.float32 if dtype.is_floating else tf.int64


def _call(model: Model, x: Batch) -> Batch:
    takes_training = isinstance(model, keras.Model) or (
        "training" in inspect.signature(model.__call__).parameters
    )
    return model(x, training=False) if takes_training else model(x)


def _name_outputs(outputs: Batch) -> NamedTensors:
    if isinstance(outputs, Mapping):
        named = dict(outputs)
    elif isinstance(outputs, list | tuple):
        named = {f"output_{index}": value for index, value in enumerate(outputs)}
    else:
        named = {"predictions": outputs}
    tensors = {name: tf.convert_to_tensor(value) for name, value in named.items()}
    half = (tf.float16, tf.bfloat16)  # Clients do not know half precision.
    return {n: tf.cast(t, tf.float32) if t.dtype in half else t for n, t in tensors.items()}
