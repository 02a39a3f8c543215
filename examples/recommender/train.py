"""Train a recommender on clicks: DLRM, or wide and deep, with a table of embeddings.

    python examples/recommender/train.py --model-dir runs/clicks
    phalanx run --workers 2 --ps 2 examples/recommender/train.py --model-dir runs/clicks

Without --data-dir, every task generates a small data set in memory. See clicks.py for files.
"""

import argparse
import os
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from clicks import CATEGORIES, NUMBERS, Clicks, read, split_label
from networks import NETWORKS

import phalanx


@dataclass(frozen=True)
class Recommender(phalanx.Experiment):
    """Predicts clicks."""

    network: str
    rows: int
    width: int
    learning_rate: float
    data_dir: str | None = None

    def model(self) -> keras.Model:
        model = NETWORKS[self.network](self.rows, self.width)
        model.compile(
            keras.optimizers.Adam(self.learning_rate),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.AUC(name="auc", from_logits=True, num_thresholds=1000)],
        )
        return model

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return self._read("train", 50_000, 1, context)

    def eval_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return self._read("eval", 10_000, 2, context)

    def example_features(self) -> dict[str, Any]:
        return {
            "numbers": tf.io.FixedLenFeature([NUMBERS], tf.float32),
            "categories": tf.io.FixedLenFeature([CATEGORIES], tf.string),
        }

    def preprocess(self, features: Any) -> Any:
        return features

    def _read(self, part: str, count: int, seed: int, context: phalanx.Context) -> Any:
        if self.data_dir is not None:
            return read(self.data_dir, part, context)
        clicks = Clicks.generate(count, seed)
        arrays = {"label": clicks.label, "numbers": clicks.numbers, "categories": clicks.categories}
        data = tf.data.Dataset.from_tensor_slices(arrays)
        data = data.shard(context.num_shards, context.shard)
        if part == "train":
            data = data.shuffle(count, seed=context.seed)
        return data.batch(context.batch_size).map(split_label, tf.data.AUTOTUNE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--network", choices=tuple(NETWORKS), default="dlrm")
    parser.add_argument("--data-dir", metavar="DIR", help="files that clicks.py has written")
    parser.add_argument("--rows", type=int, default=100_000, help="the rows of each table")
    parser.add_argument("--width", type=int, default=16, help="the size of an embedding")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    phalanx.RunConfig.add_flags(parser)
    parser.set_defaults(train_steps=780, global_batch_size=384)
    arguments = parser.parse_args()
    experiment = Recommender(
        arguments.network, arguments.rows, arguments.width, arguments.learning_rate,
        arguments.data_dir,
    )  # fmt: skip
    result = phalanx.run(experiment, phalanx.RunConfig.from_flags(arguments))
    if result.metrics:
        print(f"\n  AUC           {result.metrics['auc']:.4f}")
        if result.examples_per_second:  # 0 for an evaluator
            print(f"  speed         {result.examples_per_second:,.0f} examples/s")
        print(f"  checkpoints   {result.model_dir} (step {result.step})\n")


if __name__ == "__main__":
    main()
