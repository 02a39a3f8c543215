"""Functions that are traced side by side, and exchange tensors."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import tensorflow as tf

from phalanx.train.engines.lockstep import Lockstep


def test_functions_exchange_in_turn_and_return_their_results() -> None:
    exchanged: list[list[Any]] = []

    def make(start: int) -> Any:
        def run(exchange: Any) -> Any:
            for number in range(start, start + 2):
                exchange(number)
            return tf.constant(start)

        return run

    @tf.function  # type: ignore[untyped-decorator]
    def trace() -> Any:
        return Lockstep[int, Any](exchanged.append).run([make(0), make(10)])

    assert [int(value) for value in trace()] == [0, 10]
    assert exchanged == [[0, 10], [1, 11]]


def test_error_in_one_function_ends_all_threads() -> None:
    def fail(exchange: Any) -> None:
        exchange(1)
        raise ValueError("this one fails")

    def wait(exchange: Any) -> None:
        exchange(1)
        exchange(2)

    before = threading.active_count()

    def trace() -> None:
        Lockstep[int, None](lambda items: None).run([wait, fail])

    with pytest.raises(ValueError, match="this one fails"):
        tf.function(trace, autograph=False).get_concrete_function()
    assert threading.active_count() == before
