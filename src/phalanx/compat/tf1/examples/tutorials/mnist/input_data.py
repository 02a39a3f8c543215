"""tensorflow.examples.tutorials.mnist.input_data: MNIST as arrays, in batches."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from phalanx.data.datasets import MNIST_FILES, MNIST_URL, download, read_mnist

_SIZE = 28
_CLASSES = 10


class DataSet:
    """Images and labels, in batches.

    Args:
        images: Images of the shape [count, 784] or [count, 28, 28, 1].
        labels: Their labels.
        seed: The seed of the order.
    """

    def __init__(self, images: Any, labels: Any, seed: int | None = None) -> None:
        self.images, self.labels = images, labels
        self.num_examples = len(images)
        self.epochs_completed = 0
        self._random = np.random.RandomState(seed)
        self._order = np.arange(0)
        self._has_started = False

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[Any, Any]:
        """Return the next images and labels; after an epoch, begin again in another order.

        Args:
            batch_size: The number of images.
            fake_data: Not used.
            shuffle: Whether every epoch has another order.

        Returns:
            The images and the labels.
        """
        while len(self._order) < batch_size:
            if self._has_started:
                self.epochs_completed += 1
            self._has_started = True
            count = self.num_examples
            order = self._random.permutation(count) if shuffle else np.arange(count)
            self._order = np.concatenate([self._order, order])
        chosen, self._order = self._order[:batch_size], self._order[batch_size:]
        return self.images[chosen], self.labels[chosen]


class Datasets(NamedTuple):
    """The parts of MNIST."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = tf.float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = MNIST_URL,
) -> Datasets:
    """Return MNIST; files that are not in the directory are downloaded into it.

    Args:
        train_dir: The directory of the four published files.
        fake_data: Return images of ones, without files.
        one_hot: Whether labels are one-hot vectors.
        dtype: tf.float32 for pixels from 0 to 1, tf.uint8 for pixels from 0 to 255.
        reshape: Whether images are vectors.
        validation_size: How many training images are for validation.
        seed: The seed of the order.
        source_url: Where the files are downloaded from.

    Returns:
        The three parts.
    """
    if fake_data:
        ones = np.ones([1000, _SIZE * _SIZE], np.uint8) * 255, np.zeros(1000, np.int64)
        train, test, validation_size = ones, ones, 0
    else:
        directory = Path(train_dir)
        directory.mkdir(parents=True, exist_ok=True)
        for name, md5 in MNIST_FILES.items():
            if not (directory / name).is_file() and not (directory / f"{name}.gz").is_file():
                download(f"{source_url}{name}.gz", md5, directory)
        parts = [read_mnist(directory, part) for part in ("train", "t10k")]
        train, test = ((part.images, part.labels) for part in parts)
    if not 0 <= validation_size <= len(train[0]):
        raise ValueError(
            f"validation_size is {validation_size}: it must be from 0 to {len(train[0])}"
        )

    def make(images: Any, labels: Any) -> DataSet:
        if tf.as_dtype(dtype) == tf.float32:
            images = images.astype(np.float32) / 255
        if not reshape:
            images = images.reshape(-1, _SIZE, _SIZE, 1)
        if one_hot:
            labels = np.eye(_CLASSES)[labels]
        return DataSet(images, labels, seed)

    return Datasets(
        make(train[0][validation_size:], train[1][validation_size:]),
        make(train[0][:validation_size], train[1][:validation_size]),
        make(*test),
    )
