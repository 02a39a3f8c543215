"""tf.estimator.inputs, and what an input_fn returns."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

_TARGET = "phalanx_target"


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Return an input_fn that reads NumPy arrays.

    Args:
        x: An array, or a dict of arrays; the first dimension counts the examples.
        y: An array of labels, or a dict of arrays; None for features only.
        batch_size: The number of examples in a batch.
        num_epochs: How often the arrays are read; None repeats them without end.
        shuffle: Whether every epoch has another order. It must be set.
        queue_capacity: Accepted for the sake of old programs; the input pipeline has no queue.
        num_threads: Accepted for the sake of old programs.

    Returns:
        The input_fn.
    """
    if shuffle not in (True, False):
        raise ValueError("numpy_input_fn: set shuffle to True for training, False for evaluation")
    features = {str(key): np.asarray(each) for key, each in x.items()} if _is_dict(x) else x
    columns = dict(features) if _is_dict(features) else {"": np.asarray(features)}
    if not columns:
        raise ValueError("numpy_input_fn: x is an empty dict")
    labels = {} if y is None else (dict(y) if _is_dict(y) else {"": np.asarray(y)})
    targets = {f"{_TARGET}/{name}": np.asarray(each) for name, each in labels.items()}
    counts = {name: len(each) for name, each in {**columns, **targets}.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"numpy_input_fn: the arrays have different lengths: {counts}")
    if batch_size < 1 or not all(counts.values()):
        raise ValueError(
            f"numpy_input_fn: batch_size is {batch_size}, and the arrays have {counts} examples: "
            "there must be at least 1 of each"
        )

    def input_fn() -> Any:
        batch = _read_arrays({**columns, **targets}, batch_size, num_epochs, bool(shuffle))
        found: Any = {name: batch[name] for name in columns}
        found = found if _is_dict(features) else found[""]
        if y is None:
            return found
        target: Any = {name: batch[f"{_TARGET}/{name}"] for name in labels}
        return found, target if _is_dict(y) else target[""]

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Return an input_fn that reads the columns of a pandas DataFrame.

    Args:
        x: A DataFrame.
        y: A Series or DataFrame of labels; None for features only.
        batch_size: The number of examples in a batch.
        num_epochs: How often the rows are read; None repeats them without end.
        shuffle: Whether every epoch has another order. It must be set.
        queue_capacity: Accepted for the sake of old programs.
        num_threads: Accepted for the sake of old programs.
        target_column: The name of the labels while they are read; it may not be a column of x.

    Returns:
        The input_fn.
    """
    if not hasattr(x, "columns"):
        raise TypeError(
            f"pandas_input_fn: x is a {type(x).__name__}: pass a DataFrame, or use numpy_input_fn"
        )
    if target_column in x.columns:
        raise ValueError(f"pandas_input_fn: {target_column!r} is a column of x: set target_column")
    if y is not None and not np.array_equal(x.index, y.index):
        raise ValueError("pandas_input_fn: x and y have different indices")
    features = {str(name): x[name].to_numpy() for name in x.columns}
    labels: Any = None
    if y is not None:
        is_frame = hasattr(y, "columns")
        labels = {str(name): y[name].to_numpy() for name in y.columns} if is_frame else y.to_numpy()
    return numpy_input_fn(
        features, labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads
    )


def _is_dict(value: object) -> bool:
    return isinstance(value, Mapping)


def _read_arrays(
    arrays: Mapping[str, Any], batch_size: int, num_epochs: int | None, shuffle: bool
) -> dict[str, Any]:
    """Return the tensors of a batch. The arrays stay outside of the graph, which holds 2 GB."""
    count = len(next(iter(arrays.values())))
    stored = {
        name: each.astype(object) if each.dtype.kind in "US" else each
        for name, each in arrays.items()
    }
    signature = {
        name: tf.TensorSpec(
            [None, *each.shape[1:]], tf.string if each.dtype == object else each.dtype
        )
        for name, each in stored.items()
    }

    def read_batches() -> Iterator[dict[str, Any]]:
        rest = np.arange(0)
        epoch = 0
        while num_epochs is None or epoch < num_epochs:
            order = np.random.permutation(count) if shuffle else np.arange(count)
            rest = np.concatenate([rest, order])
            epoch += 1
            while len(rest) >= batch_size:
                chosen, rest = rest[:batch_size], rest[batch_size:]
                yield {name: each[chosen] for name, each in stored.items()}
        if len(rest):
            yield {name: each[rest] for name, each in stored.items()}

    dataset = tf.data.Dataset.from_generator(read_batches, output_signature=signature).prefetch(2)
    iterator = tf.data.make_initializable_iterator(dataset)
    # An input_fn that returns tensors has no other way to have its iterator initialized.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    batch: dict[str, Any] = iterator.get_next()
    return batch


class Inputs(NamedTuple):
    """The tensors of an input_fn, and the hook that starts its dataset."""

    features: Any
    labels: Any
    hooks: tuple[Any, ...] = ()


class DatasetHook(tf.train.SessionRunHook):
    """Starts a dataset in every new session, also after a recovery."""

    def __init__(self, iterator: Any) -> None:
        self._initializer = iterator.initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)


def call_input_fn(
    input_fn: Callable[..., Any], mode: str, params: Any, config: Any, *, has_labels: bool = True
) -> Inputs:
    """Call an input_fn with the arguments that it takes, in the current graph.

    Args:
        input_fn: The function of the user.
        mode: Passed on if the function takes `mode`.
        params: Passed on if the function takes `params`.
        config: Passed on if the function takes `config`.
        has_labels: Whether a pair is (features, labels); otherwise labels are dropped.

    Returns:
        The tensors of a batch.
    """
    with tf.device("/cpu:0"):
        result = call_user(input_fn, {"mode": mode, "params": params, "config": config})
        hooks: tuple[Any, ...] = ()
        if isinstance(result, (tf.data.Dataset, tf.compat.v2.data.Dataset)):
            iterator = tf.data.make_initializable_iterator(result)
            result, hooks = iterator.get_next(), (DatasetHook(iterator),)
    features, labels = split_inputs(result)
    return Inputs(features, labels if has_labels else None, hooks)


def call_user(input_fn: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """Return what an input_fn returns for those of the known arguments that it takes."""
    if not callable(input_fn):
        kind = type(input_fn).__name__
        raise TypeError(f"the input_fn is a {kind}: pass a function that returns the data")
    taken = inspect.signature(input_fn).parameters
    required = [name for name, each in taken.items() if _is_required(each) and name not in known]
    if required:
        raise ValueError(
            f"the input_fn takes {', '.join(required)}, but it is called with mode, params and "
            "config only: pass lambda: input_fn(...), or functools.partial"
        )
    return input_fn(**{name: known[name] for name in taken if name in known})


def _is_required(parameter: inspect.Parameter) -> bool:
    is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return is_one and parameter.default is parameter.empty


def split_inputs(result: Any) -> tuple[Any, Any]:
    """Return the features and the labels of a batch; the labels are None if there are none."""
    if isinstance(result, (tuple, list)) and not hasattr(result, "_fields"):
        if len(result) != 2:
            raise ValueError(
                f"the input_fn returned {len(result)} things: return (features, labels), a dataset "
                "of such pairs, or features alone"
            )
        features, labels = result
    else:
        features, labels = result, None
    _check_features(features)
    return features, labels


def _check_features(features: Any) -> None:
    tensors = tf.nest.flatten(features)
    wrong = [each for each in tensors if not tf.is_tensor(each) and each is not None]
    if not tensors or wrong or features is None:
        found = type(wrong[0]).__name__ if wrong else repr(features)
        raise ValueError(
            f"the input_fn returned features of {found}: return tensors, or a dataset; for arrays "
            "use tf.estimator.inputs.numpy_input_fn"
        )
