"""Train a small convolutional network on MNIST, or on synthetic images of digits.

    python examples/mnist/train.py --model-dir runs/digits
    phalanx run --workers 2 --ps 1 examples/mnist/train.py --model-dir runs/digits

With --data mnist.npz (the file that Keras downloads), it trains on MNIST.
"""

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import phalanx

# The segments of a seven-segment display: top, top right, bottom right, bottom, bottom left,
# top left, middle; each as (row, column, height, width) in an image of 28 x 28.
SEGMENTS = [
    (4, 9, 2, 10),
    (4, 18, 10, 2),
    (14, 18, 10, 2),
    (22, 9, 2, 10),
    (14, 8, 10, 2),
    (4, 8, 10, 2),
    (13, 9, 2, 10),
]
LIT = ["012345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356"]


def draw_digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw seven-segment digits with random shifts, brightness and noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    images = random.normal(0.0, 0.35, (count, 28, 28)).astype("float32")
    for image, label in zip(images, labels, strict=True):
        down, right = random.integers(-3, 4, 2)
        for segment in LIT[label]:
            row, column, height, width = SEGMENTS[int(segment)]
            top, left = row + down, column + right
            image[top : top + height, left : left + width] += random.uniform(0.6, 1.0)
    return images[..., None], labels


class Digits(phalanx.Experiment):
    def __init__(self, data: str | None = None, learning_rate: float = 0.002) -> None:
        self.data = data
        self.learning_rate = learning_rate

    def model(self) -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
                keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(self.learning_rate), loss, metrics=["accuracy"])
        return model

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(self._read("train"))
        data = data.shard(context.num_shards, context.shard)
        return data.shuffle(10_000, seed=context.seed).batch(context.batch_size)

    def eval_data(self, context: phalanx.Context) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(self._read("test"))
        return data.shard(context.num_shards, context.shard).batch(context.batch_size)

    def _read(self, part: str) -> tuple[Any, Any]:
        if self.data is None:
            return draw_digits(6000, seed=1) if part == "train" else draw_digits(1000, seed=2)
        with np.load(self.data) as file:
            images = file[f"x_{part}"][..., None].astype("float32") / 255
            return images, file[f"y_{part}"].astype("int64")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", help="mnist.npz  [default: synthetic digits]")
    parser.add_argument("--learning-rate", type=float, default=0.002)
    phalanx.RunConfig.add_flags(parser)
    parser.set_defaults(train_steps=400, global_batch_size=96)
    arguments = parser.parse_args()
    config = phalanx.RunConfig.from_flags(arguments)
    result = phalanx.run(Digits(arguments.data, arguments.learning_rate), config)
    if result.metrics:
        print(f"\n  accuracy      {result.metrics['accuracy']:.1%} on the test images")
        if result.examples_per_second:  # 0 for an evaluator
            print(f"  speed         {result.examples_per_second:,.0f} examples/s")
        print(f"  checkpoints   {result.model_dir} (step {result.step})")
        print(f"  TensorBoard   tensorboard --logdir {result.model_dir}\n")


if __name__ == "__main__":
    main()
