"""tf.contrib.rnn: cells and networks, as `tf.nn` has them."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

BasicLSTMCell = tf.nn.rnn_cell.BasicLSTMCell
BasicRNNCell = tf.nn.rnn_cell.BasicRNNCell
DeviceWrapper = tf.nn.rnn_cell.DeviceWrapper
DropoutWrapper = tf.nn.rnn_cell.DropoutWrapper
GRUCell = tf.nn.rnn_cell.GRUCell
LSTMCell = tf.nn.rnn_cell.LSTMCell
LSTMStateTuple = tf.nn.rnn_cell.LSTMStateTuple
MultiRNNCell = tf.nn.rnn_cell.MultiRNNCell
ResidualWrapper = tf.nn.rnn_cell.ResidualWrapper
RNNCell = tf.nn.rnn_cell.RNNCell
static_bidirectional_rnn = tf.nn.static_bidirectional_rnn
static_rnn = tf.nn.static_rnn
static_state_saving_rnn = tf.nn.static_state_saving_rnn


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Return layers of networks in both directions; see `tf.nn.bidirectional_dynamic_rnn`.

    Args:
        cells_fw: The cell of each layer, forward.
        cells_bw: The cell of each layer, backward.
        inputs: The inputs of the first layer.
        initial_states_fw: The first state of each forward cell.
        initial_states_bw: The first state of each backward cell.
        dtype: The type of the states, if they are not given.
        sequence_length: The length of each sequence.
        parallel_iterations: As in `tf.nn.dynamic_rnn`.
        time_major: Whether the first dimension is the time.
        scope: The scope of the variables.

    Returns:
        The outputs of both directions of the last layer, and the states of all layers.
    """
    if not cells_fw or len(cells_fw) != len(cells_bw):
        raise ValueError(
            f"there are {len(cells_fw)} forward and {len(cells_bw)} backward cells: there must be "
            "as many of both, and at least one"
        )
    count = len(cells_fw)
    states: list[tuple[Any, Any]] = []
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (forward, backward, first, last) in enumerate(
            zip(
                cells_fw,
                cells_bw,
                initial_states_fw or [None] * count,
                initial_states_bw or [None] * count,
                strict=True,
            )
        ):
            with tf.variable_scope(f"cell_{number}"):
                outputs, pair = tf.nn.bidirectional_dynamic_rnn(
                    forward,
                    backward,
                    inputs,
                    initial_state_fw=first,
                    initial_state_bw=last,
                    sequence_length=sequence_length,
                    parallel_iterations=parallel_iterations,
                    dtype=dtype,
                    time_major=time_major,
                )
            inputs = tf.concat(outputs, 2)
            states.append(pair)
    return inputs, tuple(pair[0] for pair in states), tuple(pair[1] for pair in states)
