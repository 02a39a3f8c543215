"""tf.contrib.lookup: tables from keys to indices and back, over tf.lookup."""

from typing import Any

import tensorflow.compat.v1 as tf

KeyValueTensorInitializer = tf.lookup.KeyValueTensorInitializer
TextFileInitializer = tf.lookup.TextFileInitializer
TextFileIndex = tf.lookup.TextFileIndex
MutableDenseHashTable = tf.lookup.experimental.DenseHashTable


class HashTable(tf.lookup.StaticHashTable):
    """A `tf.lookup.StaticHashTable`, with the operation `init` that it had.

    Args:
        initializer: The keys and the values.
        default_value: The value of unknown keys.
        shared_name: Has no effect: a table that does not change needs not be shared.
        name: The name of the table.
    """

    def __init__(
        self,
        initializer: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(initializer, default_value, name)

    @property
    def init(self) -> Any:
        """The operation that initializes the table."""
        return self.initializer


class MutableHashTable(tf.lookup.experimental.MutableHashTable):
    """A table that the program fills. Tasks that build the same graph share it on a ps.

    Args:
        key_dtype: The type of the keys.
        value_dtype: The type of the values.
        default_value: The value of unknown keys.
        shared_name: Has no effect: tables are shared by their names in the graph.
        name: The name of the table.
        checkpoint: Whether checkpoints have its contents.
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
    ) -> None:
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint)


def index_table_from_file(
    vocabulary_file: Any,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = None,
    key_dtype: Any = tf.string,
    name: str | None = None,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER,
    delimiter: str = "\t",
) -> Any:
    """Return a table from the lines of a file to their numbers.

    Args:
        vocabulary_file: The path.
        num_oov_buckets: Over how many more indices unknown keys are spread by their hash.
        vocab_size: How many lines to read; all by default.
        default_value: The index of unknown keys without such buckets.
        hasher_spec: Has no effect: keys are hashed as by default.
        key_dtype: The type of the keys: strings or integers.
        name: The name of the table.
        key_column_index: The column of the keys; by default the whole line.
        value_column_index: The column of the indices; by default the number of the line.
        delimiter: What separates the columns.

    Returns:
        The table.
    """
    # Integers are read as integers: a vocabulary table converts its keys.
    stored = tf.int64 if tf.as_dtype(key_dtype).is_integer else key_dtype
    entries = TextFileInitializer(
        *(vocabulary_file, stored, key_column_index, tf.int64, value_column_index),
        vocab_size=vocab_size,
        delimiter=delimiter,
    )
    return _make_index(entries, num_oov_buckets, default_value, key_dtype, name)


def index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = None,
    dtype: Any = tf.string,
    name: str | None = None,
) -> Any:
    """Return a table from the elements of a tensor to their indices.

    Args:
        mapping: The keys, a tensor of one dimension.
        num_oov_buckets: Over how many more indices unknown keys are spread by their hash.
        default_value: The index of unknown keys without such buckets.
        hasher_spec: Has no effect: keys are hashed as by default.
        dtype: The type of the keys: strings or integers.
        name: The name of the table.

    Returns:
        The table.
    """
    keys = tf.convert_to_tensor(mapping)
    if keys.dtype.is_integer:
        keys = tf.cast(keys, tf.int64)
    indices = tf.range(tf.size(keys, out_type=tf.int64), dtype=tf.int64)
    entries = KeyValueTensorInitializer(keys, indices)
    return _make_index(entries, num_oov_buckets, default_value, dtype, name)


def _make_index(entries: Any, buckets: int, default: int, dtype: Any, name: str | None) -> Any:
    if buckets:
        return tf.lookup.StaticVocabularyTable(
            entries, buckets, lookup_key_dtype=tf.as_dtype(dtype), name=name
        )
    return HashTable(entries, default, name=name)


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: str = "UNK",
    name: str | None = None,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> HashTable:
    """Return a table from the numbers of the lines of a file to the lines.

    Args:
        vocabulary_file: The path.
        vocab_size: How many lines to read; all by default.
        default_value: The string of unknown indices.
        name: The name of the table.
        key_column_index: The column of the indices; by default the number of the line.
        value_column_index: The column of the strings; by default the whole line.
        delimiter: What separates the columns.

    Returns:
        The table.
    """
    entries = TextFileInitializer(
        *(vocabulary_file, tf.int64, key_column_index, tf.string, value_column_index),
        vocab_size=vocab_size,
        delimiter=delimiter,
    )
    return HashTable(entries, default_value, name=name)


def index_to_string_table_from_tensor(
    mapping: Any, default_value: str = "UNK", name: str | None = None
) -> HashTable:
    """Return a table from indices to the elements of a tensor of strings.

    Args:
        mapping: The strings.
        default_value: The string of unknown indices.
        name: The name of the table.

    Returns:
        The table.
    """
    values = tf.convert_to_tensor(mapping, tf.string)
    indices = tf.range(tf.size(values, out_type=tf.int64), dtype=tf.int64)
    return HashTable(KeyValueTensorInitializer(indices, values), default_value, name=name)


string_to_index_table_from_file = index_table_from_file
string_to_index_table_from_tensor = index_table_from_tensor


def index_to_string(tensor: Any, mapping: Any, default_value: str = "UNK") -> Any:
    """Return the strings of indices."""
    return index_to_string_table_from_tensor(mapping, default_value).lookup(tensor)


def string_to_index(tensor: Any, mapping: Any, default_value: int = -1) -> Any:
    """Return the indices of strings."""
    return index_table_from_tensor(mapping, 0, default_value).lookup(tensor)
