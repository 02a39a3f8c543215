"""Trainers without data stand in for missing gradients, but never end a pass too early."""

from __future__ import annotations

import tensorflow as tf

from phalanx.train.engines.data_ends import DataEnds


def ask(ends: DataEnds, *trainers: int) -> list[bool]:
    """Return whether each trainer is needed, when their data ends in this order."""
    is_needed = tf.function(ends.is_needed)
    return [bool(is_needed(tf.constant(trainer))) for trainer in trainers]


def test_the_first_trainers_to_end_are_the_backups() -> None:
    ends = DataEnds(4, 2, "CPU:0")
    assert ask(ends, 3, 0, 2, 1) == [False, False, True, True]
    # With the next token they answer the same.
    assert ask(ends, 0, 1, 2, 3) == [False, True, True, False]
    ends.begin_pass()
    assert ask(ends, 0, 1, 2, 3) == [False, False, True, True]


def test_without_backups_every_trainer_is_needed() -> None:
    assert ask(DataEnds(2, 0, "CPU:0"), 0, 1) == [True, True]


def test_a_lost_trainer_counts_as_the_first_that_ended() -> None:
    ends = DataEnds(3, 1, "CPU:0")
    assert ask(ends, 0) == [False]
    ends.leave_out([2])
    assert ends.find_ended() == [0]
    assert ask(ends, 0, 1) == [True, True]


def test_a_trainer_that_is_back_has_data_again() -> None:
    ends = DataEnds(3, 1, "CPU:0")
    assert ask(ends, 2, 0) == [False, True]
    ends.leave_out([2])
    assert ask(ends, 0) == [True]
    tf.function(ends.begin_call)(tf.constant(2))
    assert ask(ends, 0, 1) == [False, True]
    assert ends.find_ended() == [0, 1]
