"""What is added to the errors of a program."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.program import explain


@pytest.mark.parametrize(
    ("use", "note"),
    [
        (lambda: iter(tf.data.Dataset.range(3)), "run it without --tf1"),
        (lambda: tf.constant(1).numpy(), "run it without --tf1"),
        (lambda: list(tf.constant([1, 2])), "run it without --tf1"),
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
