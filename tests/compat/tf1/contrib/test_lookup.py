"""tf.contrib.lookup: tables from keys to indices, and back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib import lookup


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def evaluate(tensors: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        return session.run(tensors)


def test_tables_find_the_index_of_a_word_and_the_word_of_an_index(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("red\ngreen\nblue\n")
    words = tf.constant(["blue", "red", "pink"])
    with_buckets = lookup.index_table_from_file(str(path), num_oov_buckets=1)
    from_tensor = lookup.index_table_from_tensor(tf.constant(["red", "green", "blue"]))
    few = lookup.index_table_from_file(str(path), vocab_size=2, default_value=9)
    back = lookup.index_to_string_table_from_file(str(path))
    named = lookup.index_to_string_table_from_tensor(["no", "yes"], default_value="?")
    indices = tf.constant([1, 3], tf.int64)
    found = evaluate(
        [
            *(table.lookup(words) for table in (with_buckets, from_tensor, few)),
            *(table.lookup(indices) for table in (back, named)),
        ]
    )
    assert [each.tolist() for each in found] == [
        [2, 0, 3],
        [2, 0, -1],
        [9, 0, 9],
        [b"green", b"UNK"],
        [b"yes", b"?"],
    ]


def test_integers_and_columns_are_keys(tmp_path: Path) -> None:
    path = tmp_path / "columns.csv"
    path.write_text("70,5\n80,6\n")
    numbers = lookup.index_table_from_tensor([20, 30], num_oov_buckets=1, dtype=tf.int32)
    columns = lookup.index_table_from_file(
        str(path), key_dtype=tf.int64, key_column_index=0, value_column_index=1, delimiter=","
    )
    found = evaluate(
        [numbers.lookup(tf.constant([30, 1])), columns.lookup(tf.constant([80, 7], tf.int64))]
    )
    assert [each.tolist() for each in found] == [[1, 2], [6, -1]]


def test_a_table_of_pairs_has_its_old_initializer() -> None:
    pairs = lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1.0, 2.0]))
    table = lookup.HashTable(pairs, -1.0)
    with tf.Session() as session:
        session.run(table.init)
        assert session.run(table.lookup(tf.constant(["b", "c"]))).tolist() == [2.0, -1.0]


def test_tables_take_a_shared_name() -> None:
    pairs = lookup.KeyValueTensorInitializer(["a"], tf.constant([1], tf.int64))
    fixed = lookup.HashTable(pairs, -1, shared_name="pairs")
    changing = lookup.MutableHashTable(tf.string, tf.int64, -1, "words", "table")
    a = tf.constant(["a"])
    with tf.control_dependencies([changing.insert(a, tf.constant([2], tf.int64))]):
        found = evaluate([fixed.lookup(a), changing.lookup(a)])
    assert [each.tolist() for each in found] == [[1], [2]]
