"""tf.contrib.framework: names that moved to other places of TensorFlow 1."""

from typing import Any

import tensorflow.compat.v1 as tf

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


def get_variables(
    scope: str | None = None,
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
    found = tf.get_collection(collection, scope)
    return [each for each in found if suffix is None or each.op.name.endswith(suffix)]


def get_trainable_variables(scope: str | None = None, suffix: str | None = None) -> list[Any]:
    """Return the variables that are trained.

    Args:
        scope: A scope, or a regular expression for the beginning of names.
        suffix: The end of names.

    Returns:
        The variables.
    """
    return get_variables(scope, suffix, tf.GraphKeys.TRAINABLE_VARIABLES)


def get_variables_to_restore(
    include: list[str] | None = None, exclude: list[str] | None = None
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
