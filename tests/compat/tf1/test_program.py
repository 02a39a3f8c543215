"""What is added to the errors of a program."""

import importlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

from phalanx.compat.tf1.program import explain

pytest.importorskip("tf_keras", reason="not installed: pip install 'phalanx[tf1]'")


def tape_gradient() -> Any:
    variable = tf.Variable(1.0, use_resource=False)
    with tf.GradientTape() as tape:
        square = variable * variable
    return tape.gradient(square, variable)


@pytest.mark.parametrize(
    ("use", "note"),
    [
        (lambda: iter(tf.data.Dataset.range(3)), "run it without --tf1"),
        (lambda: tf.constant(1).numpy(), "run it without --tf1"),
        (lambda: list(tf.constant([1, 2])), "run it without --tf1"),
        (tape_gradient, "run it without --tf1"),
        (lambda: tf.nn.seq2seq, "tf.nn.seq2seq is not provided under --tf1"),
        (lambda: tf.train.SummaryWriter, "is not provided under --tf1: use tf.summary.FileWriter"),
        (lambda: context.in_graph_mode, "not provided under --tf1: use tf.executing_eagerly"),
        (
            lambda: tf.distribute.MultiWorkerMirroredStrategy,
            "tf.distribute.MultiWorkerMirroredStrategy is a name of TensorFlow 2",
        ),
        (lambda: keras.Sequential([keras.layers.Dense(1)]).summary(line_length="x"), "Keras 3"),
        (
            lambda: importlib.import_module("tf_keras").ops,
            "If the program is for Keras 3",
        ),
        (lambda: importlib.import_module("tf_keras.ops"), "run it without --tf1"),
        (lambda: np.zeros(2).tostring(), "write tobytes() instead"),  # type: ignore[attr-defined]
    ],
)
def test_error_of_another_time_gets_a_note(use: Callable[[], Any], note: str) -> None:
    with tf.Graph().as_default(), pytest.raises(Exception, match="") as raised:
        try:
            use()
        except Exception as error:
            explain(error)
    assert note in "".join(raised.value.__notes__)
