"""Variables of a graph: by scope, of the model, and from checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.framework.scopes import add_arg_scope

assert_global_step = tf.train.assert_global_step
create_global_step = tf.train.create_global_step
get_global_step = tf.train.get_global_step
get_or_create_global_step = tf.train.get_or_create_global_step
init_from_checkpoint = tf.train.init_from_checkpoint
is_tensor = tf.is_tensor
list_variables = tf.train.list_variables
load_checkpoint = tf.train.load_checkpoint
load_variable = tf.train.load_variable
nest = tf.nest
with_shape = tf.ensure_shape


@add_arg_scope
def variable(
    name: str,
    shape: Any = None,
    dtype: Any = tf.float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    device: Any = None,
    **more: Any,
) -> Any:
    """Return a variable of the scope, which is made if there is none; see `tf.get_variable`."""
    kept = list(collections if collections is not None else [tf.GraphKeys.GLOBAL_VARIABLES])
    with tf.device(device or ""):
        return tf.get_variable(
            name,
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
            collections=kept,
            **more,
        )


@add_arg_scope
def model_variable(
    name: str,
    shape: Any = None,
    dtype: Any = tf.float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    device: Any = None,
    **more: Any,
) -> Any:
    """Return a variable of the scope that is a part of the model; see `tf.get_variable`."""
    found = variable(
        name, shape, dtype, initializer, regularizer, trainable, collections, device, **more
    )
    add_model_variable(found)
    return found


def add_model_variable(var: Any) -> None:
    """Count a variable among those of the model, for `get_model_variables`.

    Args:
        var: The variable.
    """
    if not any(each is var for each in tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)):
        tf.add_to_collection(tf.GraphKeys.MODEL_VARIABLES, var)


def get_variables(
    scope: Any = None,
    suffix: str | None = None,
    collection: str = tf.GraphKeys.GLOBAL_VARIABLES,
) -> list[Any]:
    """Return the variables of a collection.

    Args:
        scope: A scope, or a regular expression for the beginning of names.
        suffix: The end of names.
        collection: The collection.

    Returns:
        The variables.
    """
    found = tf.get_collection(collection, getattr(scope, "name", scope))
    return [each for each in found if suffix is None or each.op.name.endswith(suffix)]


def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """Return the variables that are trained, as `get_variables` does."""
    return get_variables(scope, suffix, tf.GraphKeys.TRAINABLE_VARIABLES)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """Return the variables of the layers, without those of the optimizer."""
    return get_variables(scope, suffix, tf.GraphKeys.MODEL_VARIABLES)


def get_local_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """Return the variables that are not saved, such as those of metrics."""
    return get_variables(scope, suffix, tf.GraphKeys.LOCAL_VARIABLES)


def get_variables_by_suffix(suffix: str, scope: Any = None) -> list[Any]:
    """Return the variables whose names end so."""
    return get_variables(scope, suffix)


def get_variables_by_name(given_name: str, scope: Any = None) -> list[Any]:
    """Return the variables of any scope with this name."""
    found = get_variables(scope)
    return [each for each in found if each.op.name.rpartition("/")[2] == given_name]


def get_variables_to_restore(
    include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[Any]:
    """Return the variables of some scopes without those of others.

    Args:
        include: The scopes to include; None for all.
        exclude: The scopes to leave out.

    Returns:
        The variables.
    """
    chosen = [v for scope in include for v in get_variables(scope)] if include else get_variables()
    left = [v.op.name for scope in exclude or () for v in get_variables(scope)]
    return [each for each in chosen if each.op.name not in left]


def assign_from_checkpoint(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False
) -> tuple[Any, dict[Any, Any]]:
    """Return an operation that sets variables to the values of a checkpoint, and what to feed.

    Args:
        model_path: The checkpoint.
        var_list: Variables, or variables by their names in the checkpoint.
        ignore_missing_vars: Whether to leave out what the checkpoint does not have.

    Returns:
        The operation and its feed_dict.
    """
    operations, feeds = [], {}
    for name, each in _find_in_checkpoint(model_path, var_list, ignore_missing_vars).items():
        value = tf.train.load_variable(model_path, name)
        holder = tf.placeholder(each.dtype.base_dtype, value.shape)
        operations.append(each.assign(holder))
        feeds[holder] = value
    return tf.group(*operations), feeds


def assign_from_checkpoint_fn(
    model_path: str,
    var_list: Any,
    ignore_missing_vars: bool = False,
    reshape_variables: bool = False,
) -> Callable[[Any], None] | None:
    """Return a function that restores variables of a session from a checkpoint.

    Args:
        model_path: The checkpoint.
        var_list: Variables, or variables by their names in the checkpoint.
        ignore_missing_vars: Whether to leave out what the checkpoint does not have.
        reshape_variables: Whether shapes may differ.

    Returns:
        The function, which takes the session; None if there is nothing to restore.
    """
    found = _find_in_checkpoint(model_path, var_list, ignore_missing_vars)
    if not found:
        return None
    saver = tf.train.Saver(found, reshape=reshape_variables)
    return lambda session: saver.restore(session, model_path)


def _find_in_checkpoint(path: str, var_list: Any, ignore_missing: bool) -> dict[str, Any]:
    wanted = (
        dict(var_list)
        if isinstance(var_list, Mapping)
        else {each.op.name: each for each in var_list}
    )
    there = {name for name, _ in tf.train.list_variables(path)}
    missing = sorted(set(wanted) - there)
    if missing and not ignore_missing:
        raise ValueError(
            f"the checkpoint {path} has no variable {', '.join(missing)}: leave it out of "
            "var_list, or set ignore_missing_vars=True"
        )
    return {name: each for name, each in wanted.items() if name in there}
