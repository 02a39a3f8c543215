"""The lock around updates on parameter servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from phalanx.train.engines.lock import Lock


def test_lock_covers_updates_that_the_result_does_not_depend_on() -> None:
    lock, count = Lock(), tf.Variable(0.0)

    def add_slowly() -> list[Any]:
        value = count.read_value()
        slow = tf.linalg.matmul(tf.zeros([400, 400]), tf.fill([400, 400], value))
        count.assign(value + 1 + slow[0, 0])
        return [tf.constant(0)]

    update = tf.function(lambda: lock.run(add_slowly))
    update()
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(update) for _ in range(99)]:
            future.result()
    assert float(count) == 100


def test_two_locks_on_a_device_do_not_wait_for_each_other() -> None:
    one, other = Lock(), Lock()
    held = tf.function(lambda: one.run(lambda: other.run(lambda: [tf.constant(7)])))
    assert int(held()[0]) == 7
