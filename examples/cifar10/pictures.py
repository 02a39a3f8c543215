"""The input pipeline of CIFAR-10: from TFRecord files to batches for the network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

import phalanx
from phalanx.data import Pipeline, Share
from phalanx.data.augment import crop_and_flip, from_depth_major, standardize

HEIGHT = WIDTH = 32
DEPTH = 3


@dataclass(frozen=True)
class Cifar10Images:
    """The training and test images in the output directory of `phalanx dataset cifar10`.

    `distort` pads an image to 40 x 40, crops it at random, and flips half of the images;
    `change_light` also changes brightness and contrast at random.
    """

    directory: str
    distort: bool = True
    change_light: bool = False

    def train(self, batch_size: int, share: Any, seed: int | None = None) -> tf.data.Dataset:
        """Return one epoch of this task's shard, in a new order each time."""
        pipeline = self._open("train", seed or 0).map(self._prepare_train, seeded=True)
        return pipeline.dataset(batch_size, share=share, epochs=1, drop_remainder=True)

    def test(self, batch_size: int, share: Any = Share()) -> tf.data.Dataset:  # noqa: B008
        """Return all test images of this task's shard once, without augmentation."""
        pipeline = self._open("eval").map(lambda batch: (as_input(batch["image"]), batch["label"]))
        return pipeline.dataset(batch_size, share=share, epochs=1)

    def sample(self, count: int) -> tuple[Any, Any, Any]:
        """Return the first test images: original, as network input, and their labels."""
        batch = next(iter(self._open("eval").dataset(count, epochs=1)))
        images = from_depth_major(batch["image"], HEIGHT, WIDTH, DEPTH)
        return images, standardize(images), batch["label"]

    def count(self) -> int:
        """Return the number of training images."""
        return len(self._open("train"))

    def classes(self) -> list[str]:
        """Return the class names by label."""
        file = Path(self.directory, "classes.txt")
        return file.read_text().splitlines() if file.exists() else [str(n) for n in range(10)]

    def _open(self, split: str, seed: int | None = None) -> Pipeline:
        # One file, or numbered shards of it.
        files = [str(path) for path in sorted(Path(self.directory).glob(f"{split}*.tfrecord*"))]
        if not files:
            raise phalanx.DataError(
                f"there is no {split}.tfrecord in {self.directory}: write the images with "
                f"phalanx dataset cifar10 --out {self.directory}"
            )
        pipeline = Pipeline.from_records(files, seed=seed, raw={"image": "uint8"})
        found = {name: tuple(spec.shape) for name, spec in pipeline.signature(None).items()}
        if found != {"image": (None, HEIGHT * WIDTH * DEPTH), "label": (None,)}:
            raise phalanx.DataError(
                f"{files[0]} is not of CIFAR-10: it has {found}, not an image of "
                f"{HEIGHT * WIDTH * DEPTH} bytes and a label"
            )
        return pipeline

    def _prepare_train(self, batch: Any, seed: Any) -> tuple[Any, Any]:
        # Standardize before padding, as for the test images, so that the padding is grey.
        images = as_input(batch["image"])
        if self.distort:
            images = crop_and_flip(images, padding=4, seed=seed)
        if self.change_light:
            shape = (tf.shape(images)[0], 1, 1, 1)
            contrast = tf.random.stateless_uniform(shape, seed + 2, 0.5, 1.5)
            brightness = tf.random.stateless_uniform(shape, seed + 3, -0.5, 0.5)
            images = images * contrast + brightness
        return images, batch["label"]


def as_input(images: Any) -> Any:
    """Convert rows of bytes to network input, without augmentation."""
    return standardize(from_depth_major(images, HEIGHT, WIDTH, DEPTH))
