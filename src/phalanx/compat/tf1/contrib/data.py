"""tf.contrib.data: the datasets of TensorFlow 1.3, whose maps had threads and buffers."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


class Dataset(tf.data.Dataset):
    """A `tf.data.Dataset` with the arguments of 2017; its methods return such datasets again.

    Args:
        dataset: The `tf.data.Dataset`.
    """

    def __init__(self, dataset: Any) -> None:
        self._wrapped = dataset
        super().__init__()

    def _as_variant_tensor(self) -> Any:
        return tf.data.experimental.to_variant(self._wrapped)

    def _inputs(self) -> list[Any]:
        return [self._wrapped]

    @property
    def element_spec(self) -> Any:
        """The types and shapes of an element."""
        return self._wrapped.element_spec

    def map(
        self,
        map_func: Callable[..., Any],
        num_threads: int | None = None,
        output_buffer_size: int | None = None,
        num_parallel_calls: int | None = None,
    ) -> "Dataset":
        """Return a dataset of the function's results.

        Args:
            map_func: Called with each element.
            num_threads: The number of parallel calls, as it was called at first.
            output_buffer_size: How many results to prefetch.
            num_parallel_calls: The number of parallel calls.

        Returns:
            The new dataset.
        """
        mapped = self._wrapped.map(map_func, num_parallel_calls=num_parallel_calls or num_threads)
        return Dataset(mapped.prefetch(output_buffer_size) if output_buffer_size else mapped)

    def apply(self, transformation_func: Callable[[Any], Any]) -> "Dataset":
        """Return what a function makes of this dataset."""
        return Dataset(super().apply(transformation_func))

    def group_by_window(
        self, key_func: Callable[..., Any], reduce_func: Callable[..., Any], window_size: int
    ) -> "Dataset":
        """Group elements by a key, and return a dataset of the reduced groups.

        Args:
            key_func: Returns the key of an element.
            reduce_func: Returns a dataset for a key and a dataset of elements.
            window_size: The number of elements in a group.

        Returns:
            The new dataset.
        """
        group = tf.data.experimental.group_by_window
        return self.apply(group(key_func, reduce_func, window_size))

    def dense_to_sparse_batch(self, batch_size: int, row_shape: Any) -> "Dataset":
        """Return batches as sparse tensors.

        Args:
            batch_size: The number of elements in a batch.
            row_shape: The shape of an element; None for a dimension that varies.

        Returns:
            The new dataset.
        """
        return self.apply(tf.data.experimental.dense_to_sparse_batch(batch_size, row_shape))

    def ignore_errors(self) -> "Dataset":
        """Leave out elements that raise an error."""
        return self.apply(tf.data.experimental.ignore_errors())

    def unbatch(self) -> "Dataset":
        """Return the elements of batches one by one."""
        return self.apply(tf.data.experimental.unbatch())

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool = False) -> "Dataset":
        """Return a dataset of the paths that match a pattern.

        Args:
            file_pattern: The pattern, or several.
            shuffle: Whether their order is random. In 2017 it was not, and programs shard the
                files by their order.

        Returns:
            The dataset.
        """
        return Dataset(tf.data.Dataset.list_files(file_pattern, shuffle=shuffle))


def _derive(name: str) -> Callable[..., Any]:
    method = getattr(tf.data.Dataset, name)

    def call(self: Dataset, *args: Any, **more: Any) -> Dataset:
        return Dataset(method(self._wrapped, *args, **more))

    call.__doc__ = method.__doc__
    return call


def _make(name: str) -> Any:
    method = getattr(tf.data.Dataset, name)

    def call(*args: Any, **more: Any) -> Dataset:
        return Dataset(method(*args, **more))

    call.__doc__ = method.__doc__
    return staticmethod(call)


for _name in ("batch", "cache", "concatenate", "enumerate", "filter", "flat_map", "interleave"):
    setattr(Dataset, _name, _derive(_name))
for _name in ("padded_batch", "prefetch", "repeat", "shard", "shuffle", "skip", "take"):
    setattr(Dataset, _name, _derive(_name))
for _name in ("from_generator", "from_tensor_slices", "from_tensors", "range", "zip"):
    setattr(Dataset, _name, _make(_name))


def _make_reader(kind: Callable[..., Any]) -> Callable[..., Dataset]:
    def read(*args: Any, **more: Any) -> Dataset:
        return Dataset(kind(*args, **more))

    read.__doc__ = kind.__doc__
    return read


TFRecordDataset = _make_reader(tf.data.TFRecordDataset)
TextLineDataset = _make_reader(tf.data.TextLineDataset)
FixedLengthRecordDataset = _make_reader(tf.data.FixedLengthRecordDataset)

Iterator = tf.data.Iterator
AUTOTUNE = tf.data.AUTOTUNE

map_and_batch = tf.data.experimental.map_and_batch
shuffle_and_repeat = tf.data.experimental.shuffle_and_repeat
parallel_interleave = tf.data.experimental.parallel_interleave
ignore_errors = tf.data.experimental.ignore_errors
group_by_window = tf.data.experimental.group_by_window
bucket_by_sequence_length = tf.data.experimental.bucket_by_sequence_length
prefetch_to_device = tf.data.experimental.prefetch_to_device
unbatch = tf.data.experimental.unbatch
make_csv_dataset = tf.data.experimental.make_csv_dataset
make_batched_features_dataset = tf.data.experimental.make_batched_features_dataset
CsvDataset = tf.data.experimental.CsvDataset
enumerate_dataset = tf.data.experimental.enumerate_dataset
sample_from_datasets = tf.data.experimental.sample_from_datasets
rejection_resample = tf.data.experimental.rejection_resample
scan = tf.data.experimental.scan


def batch_and_drop_remainder(batch_size: int) -> Callable[[Any], Any]:
    """Return a function for `apply` that makes batches and drops the last, smaller one.

    Args:
        batch_size: The number of elements in a batch.

    Returns:
        The function.
    """
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)
