"""Variables that are tensors, and that tapes take for variables."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from phalanx.train.step.tape_scope import TapeScope


def refuse(variable: Any) -> None:
    raise AssertionError(variable.path)


def open_scope(variable: Any) -> TapeScope:
    return TapeScope([(variable, tf.constant([2.0]))], [], lambda other: None, refuse)


@pytest.fixture
def variable() -> Any:
    return keras.Variable([1.0])


def test_tape_watches_a_variable_when_it_is_read(variable: Any) -> None:
    with open_scope(variable), tf.GradientTape() as tape:
        squared = variable * variable
    with open_scope(variable) as scope:
        with tf.GradientTape(watch_accessed_variables=False) as blind:
            unseen = variable * variable
        assert blind.gradient(unseen, variable) is None
        assert id(variable) in scope.read
    assert [v is variable for v in tape.watched_variables()] == [True]
    assert float(squared[0]) == 4.0


def test_gradient_survives_an_update_of_the_variable(variable: Any) -> None:
    with open_scope(variable) as scope, tf.GradientTape(persistent=True) as tape:
        before = variable * 3.0
        scope.set_value(variable, tf.constant([5.0]))
        after = variable * variable
        assert float(tape.gradient(before, variable)[0]) == 3.0
        assert float(tape.gradient(after, variable)[0]) == 10.0


def test_gradients_stop_at_an_assignment(variable: Any) -> None:
    weight = keras.Variable([1.0])
    values = [(variable, tf.constant([2.0])), (weight, tf.constant([3.0]))]
    scope = TapeScope(values, [], lambda other: None, refuse)
    with scope, tf.GradientTape(persistent=True) as tape:
        variable.assign(weight * 2.0)
        loss = variable * weight
        assert float(tape.gradient(loss, weight)[0]) == 6.0
    assert set(scope.assigned) == {id(variable)}
    assert float(variable.numpy()[0]) == 1.0


def test_suspended_scope_lets_variables_be_variables(variable: Any) -> None:
    with open_scope(variable) as scope:
        with scope.suspend():
            variable.assign([7.0])
            assert float(variable.numpy()[0]) == 7.0
        assert float(variable.value[0]) == 2.0


def test_assignment_to_an_unknown_variable_is_refused(variable: Any) -> None:
    with open_scope(variable), pytest.raises(AssertionError):
        keras.Variable.assign(OTHER, [1.0])


OTHER = keras.Variable([0.0], name="other")
