"""CIFAR-10's pictures: from TFRecord files to batches that are ready for the network."""

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
class Pictures:
    """What `phalanx dataset cifar10` wrote to a directory: pictures to train on, and to test with.

    Distorted, a picture is cut out of a frame of 40 x 40 and every other one is mirrored; with
    `change_light`, brightness and contrast are random too.
    """

    directory: str
    distort: bool = True
    change_light: bool = False

    def train(self, batch_size: int, share: Any, seed: int | None = None) -> tf.data.Dataset:
        """One epoch of this task's share, each time in another order."""
        pipeline = self._open("train", seed or 0).map(self._prepare_train, seeded=True)
        return pipeline.dataset(batch_size, share=share, epochs=1, drop_remainder=True)

    def test(self, batch_size: int, share: Any = Share()) -> tf.data.Dataset:  # noqa: B008
        """All test pictures of this task's share, once, as they are."""
        pipeline = self._open("eval").map(lambda batch: (as_input(batch["image"]), batch["label"]))
        return pipeline.dataset(batch_size, share=share, epochs=1)

    def sample(self, count: int) -> tuple[Any, Any, Any]:
        """The first test pictures: as people see them, as the network does, and their labels."""
        batch = next(iter(self._open("eval").dataset(count, epochs=1)))
        images = from_depth_major(batch["image"], HEIGHT, WIDTH, DEPTH)
        return images, standardize(images), batch["label"]

    def count(self) -> int:
        """How many there are to train on."""
        return len(self._open("train"))

    def classes(self) -> list[str]:
        """What each label stands for."""
        file = Path(self.directory, "classes.txt")
        return file.read_text().splitlines() if file.exists() else [str(n) for n in range(10)]

    def _open(self, split: str, seed: int | None = None) -> Pipeline:
        # One file, or the numbered parts of it.
        files = [str(path) for path in sorted(Path(self.directory).glob(f"{split}*.tfrecord*"))]
        if not files:
            raise phalanx.DataError(
                f"there is no {split}.tfrecord in {self.directory}: write the pictures with "
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
        # Standardised before it is cut, a picture looks as in the test, and its frame is grey.
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
    """Rows of bytes as the network takes them, undistorted."""
    return standardize(from_depth_major(images, HEIGHT, WIDTH, DEPTH))
