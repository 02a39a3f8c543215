"""tf.estimator.export: what a model serves, and what it is sent."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

_SIGNATURES = tf.saved_model.signature_def_utils


class ExportOutput:
    """An output of a model, which becomes a signature of its export."""

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature of this output for these inputs."""
        raise NotImplementedError


class PredictOutput(ExportOutput):
    """Any tensors by name.

    Args:
        outputs: A dict of tensors, or a tensor.
    """

    def __init__(self, outputs: Any) -> None:
        named = outputs if isinstance(outputs, Mapping) else {"output": outputs}
        self.outputs = {name: tf.convert_to_tensor(each) for name, each in named.items()}

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature of this output for these inputs."""
        return _SIGNATURES.predict_signature_def(dict(receiver_tensors), self.outputs)


class ClassificationOutput(ExportOutput):
    """Classes, scores or both.

    Args:
        scores: A tensor of scores for each class.
        classes: A string tensor of classes.
    """

    def __init__(self, scores: Any = None, classes: Any = None) -> None:
        if scores is None and classes is None:
            raise ValueError("ClassificationOutput needs scores, classes or both")
        self.scores, self.classes = scores, classes

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature of this output for these inputs."""
        examples = _single_examples(receiver_tensors, "ClassificationOutput")
        return _SIGNATURES.classification_signature_def(examples, self.classes, self.scores)


class RegressionOutput(ExportOutput):
    """A predicted value.

    Args:
        value: A float tensor.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature of this output for these inputs."""
        examples = _single_examples(receiver_tensors, "RegressionOutput")
        return _SIGNATURES.regression_signature_def(examples, self.value)


def _single_examples(receiver_tensors: Mapping[str, Any], kind: str) -> Any:
    [*tensors] = receiver_tensors.values()
    if len(tensors) != 1 or tensors[0].dtype != tf.string:
        raise ValueError(
            f"{kind} is served for serialized Examples only, and the inputs are "
            f"{sorted(receiver_tensors)}: use build_parsing_serving_input_receiver_fn"
        )
    return tensors[0]


class ServingInputReceiver(NamedTuple):
    """What an export is sent, and the features that the model gets from it.

    Args:
        features: The features for the model_fn.
        receiver_tensors: The placeholders that requests fill: a tensor, or a dict.
        receiver_tensors_alternatives: Other sets of placeholders by name.
    """

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Mapping[str, Any] | None = None


class TensorServingInputReceiver(NamedTuple):
    """As `ServingInputReceiver`, for a model_fn whose features are a single tensor.

    Args:
        features: The tensor for the model_fn.
        receiver_tensors: The placeholders that requests fill: a tensor, or a dict.
        receiver_tensors_alternatives: Other sets of placeholders by name.
    """

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Mapping[str, Any] | None = None


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that receives serialized Examples.

    Args:
        feature_spec: The features of an Example, as for `tf.parse_example`.
        default_batch_size: The size of a batch; None accepts any.

    Returns:
        A serving_input_receiver_fn for `export_saved_model` and the exporters.
    """

    def receive() -> ServingInputReceiver:
        examples = tf.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        features = tf.parse_example(examples, dict(feature_spec))
        return ServingInputReceiver(features, {"examples": examples})

    return receive


def build_raw_serving_input_receiver_fn(
    features: Any, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that receives the features themselves.

    Args:
        features: A tensor for each feature by name; only their types and shapes count.
        default_batch_size: The size of a batch; None accepts any.

    Returns:
        A serving_input_receiver_fn for `export_saved_model` and the exporters.
    """
    kinds = {name: _kind_of(each) for name, each in features.items()}

    def receive() -> ServingInputReceiver:
        placeholders = {
            name: tf.placeholder(dtype, [default_batch_size, *shape[1:]], name=name)
            for name, (dtype, shape) in kinds.items()
        }
        return ServingInputReceiver(placeholders, placeholders)

    return receive


def build_tensor_serving_input_receiver_fn(
    tensor: Any, name: str
) -> Callable[[], TensorServingInputReceiver]:
    """Return a function that receives the only feature of a model.

    Args:
        tensor: Only its type and shape count.
        name: The name of the feature in requests.
    """
    dtype, shape = _kind_of(tensor)

    def receive() -> TensorServingInputReceiver:
        placeholder = tf.placeholder(dtype, [None, *shape[1:]], name=name)
        return TensorServingInputReceiver(placeholder, {name: placeholder})

    return receive


def _kind_of(tensor: Any) -> tuple[Any, list[int | None]]:
    if not isinstance(tensor, tf.Tensor):
        raise ValueError(
            f"the feature {tensor!r} is not a dense tensor: export with "
            "build_parsing_serving_input_receiver_fn"
        )
    return tensor.dtype, tensor.shape.as_list()


def name_tensors(tensors: Any, default: str) -> dict[str, Any]:
    """Return a dict of tensors as it is, and a tensor as a dict with this name."""
    return dict(tensors) if isinstance(tensors, Mapping) else {default: tensors}


def make_signatures(
    receiver: ServingInputReceiver | TensorServingInputReceiver,
    outputs: Mapping[str, ExportOutput],
) -> dict[str, Any]:
    """Return the signatures of an export: one of them is the default."""
    key = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    inputs = name_tensors(receiver.receiver_tensors, "input")
    if key not in outputs and len(outputs) != 1:
        raise ValueError(
            f"export_outputs has {sorted(outputs)}: name the one that is served by default {key!r}"
        )
    signatures = {
        name: signature
        for name, output in outputs.items()
        if (signature := _try_signature(output, inputs, len(outputs) == 1)) is not None
    }
    if key not in signatures:
        first = next(iter(outputs.values()))
        signatures[key] = signatures.get(next(iter(outputs))) or _predict_signature(first, inputs)
    for prefix, tensors in (receiver.receiver_tensors_alternatives or {}).items():
        for name, output in outputs.items():
            if (found := _try_signature(output, name_tensors(tensors, "input"), False)) is not None:
                signatures[f"{prefix}:{name}"] = found
    return signatures


def _try_signature(output: ExportOutput, inputs: Mapping[str, Any], is_only: bool) -> Any:
    """Leave out a classification or regression that raw features cannot be sent to."""
    try:
        return output.as_signature_def(inputs)
    except ValueError:
        return _predict_signature(output, inputs) if is_only else None


def _predict_signature(output: ExportOutput, inputs: Mapping[str, Any]) -> Any:
    found = {name: tensor for name, tensor in vars(output).items() if isinstance(tensor, tf.Tensor)}
    return PredictOutput(found or vars(output)["outputs"]).as_signature_def(inputs)
