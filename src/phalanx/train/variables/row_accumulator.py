"""Gradients of rows, on their way into one update made of several."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.flat_layout import Tensor


class RowAccumulator:
    """What a sum of buffers is for gradients that have only some rows.

    Each trainer has a queue for each table, on the parameter server that has the rows. It puts its
    rows there before it adds to the sum of all else, so that they are there when the sum is taken.
    """

    def __init__(self, weights: DeviceVariables, trainers: int) -> None:
        self._weights = weights
        self._trainers = trainers
        self._queues: dict[int, list[Any]] = {}
        for number in weights.table_pieces():
            piece = weights.packing.pieces[number]
            with tf.device(weights.stores[piece.store].device):
                types = [tf.int64, tf.int64, tf.as_dtype(piece.dtype)]
                self._queues[number] = [tf.queue.FIFOQueue(2**20, types) for _ in range(trainers)]

    def add(self, slot: Tensor, turn: Tensor, rows: list[tuple[Tensor, Tensor]]) -> list[Any]:
        """Put a trainer's numbers and gradients of rows into its queues; the operations."""
        added = []
        for queues, (numbers, values) in zip(self._queues.values(), rows, strict=True):
            for trainer, queue in enumerate(queues):
                added.append(
                    tf.cond(
                        slot == trainer,
                        lambda queue=queue, numbers=numbers, values=values: _put(
                            queue, [turn, numbers, values]
                        ),
                        lambda: tf.constant(False),
                    )
                )
        return added

    def nothing(self) -> list[tuple[Tensor, Tensor]]:
        """What a trainer adds that has no data left."""
        pieces = [self._weights.packing.pieces[number] for number in self._queues]
        return [
            (tf.zeros([0], tf.int64), tf.zeros([0, *piece.shape[1:]], piece.dtype))
            for piece in pieces
        ]

    def take(self, turn: Tensor, counted: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
        """By piece, the rows of a turn from those trainers that were counted; older ones go."""
        return {
            number: self._take_piece(number, queues, turn, counted)
            for number, queues in self._queues.items()
        }

    def _take_piece(
        self, number: int, queues: list[Any], turn: Tensor, counted: Tensor
    ) -> tuple[Tensor, Tensor]:
        piece = self._weights.packing.pieces[number]
        width = list(piece.shape[1:])
        found = []
        with tf.device(self._weights.stores[piece.store].device):
            for trainer, queue in enumerate(queues):
                found.append(
                    tf.while_loop(
                        lambda *_, queue=queue: queue.size() > 0,
                        lambda numbers, values, queue=queue, trainer=trainer: _newer(
                            queue, turn, counted[trainer] > 0, numbers, values, width
                        ),
                        (tf.zeros([0], tf.int64), tf.zeros([0, *width], piece.dtype)),
                        shape_invariants=(
                            tf.TensorShape([None]),
                            tf.TensorShape([None, *width]),
                        ),
                        parallel_iterations=1,
                    )
                )
            numbers, values = zip(*found, strict=True)
            return tf.concat(numbers, 0), tf.concat(values, 0)


def _put(queue: Any, values: list[Tensor]) -> Tensor:
    with tf.control_dependencies([queue.enqueue(values)]):
        return tf.constant(True)


def _newer(
    queue: Any, turn: Tensor, counts: Tensor, numbers: Tensor, values: Tensor, width: list[int]
) -> tuple[Tensor, Tensor]:
    its_turn, new_numbers, new_values = queue.dequeue()
    new_numbers = tf.ensure_shape(new_numbers, [None])
    new_values = tf.ensure_shape(new_values, [None, *width])
    fits = tf.logical_and(its_turn == turn, counts)
    kept = tf.cond(fits, lambda: (new_numbers, new_values), lambda: (numbers, values))
    return kept[0], kept[1]
