"""Train a two-tower recommender with large embedding tables, on synthetic clicks.

    python examples/recommender/train.py --model-dir runs/clicks
    phalanx run --workers 2 --ps 2 examples/recommender/train.py --model-dir runs/clicks

Every user and every item belongs to one of ten categories, which are hidden from the model. Users
click on items of their own category with probability 0.9, and on others with probability 0.1.
"""

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import phalanx

CATEGORIES = 10


class Clicks(phalanx.Experiment):
    def __init__(self, users: int, items: int, width: int, learning_rate: float) -> None:
        self.users = users
        self.items = items
        self.width = width
        self.learning_rate = learning_rate

    def model(self) -> keras.Model:
        user = keras.Input((), dtype="int64", name="user")
        item = keras.Input((), dtype="int64", name="item")
        user_vector = self._tower(self.users, "users")(user)
        item_vector = self._tower(self.items, "items")(item)
        score = keras.layers.Dot(axes=1)([user_vector, item_vector])
        model = keras.Model({"user": user, "item": item}, score)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        accuracy = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
        model.compile(keras.optimizers.Adam(self.learning_rate), loss, metrics=[accuracy])
        return model

    def _tower(self, rows: int, name: str) -> keras.Sequential:
        initializer = keras.initializers.RandomNormal(stddev=0.1)
        table = phalanx.layers.Embedding(rows, self.width, initializer, name=name)
        return keras.Sequential([table, keras.layers.Dense(self.width)], name=f"{name}_tower")

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return self._read(2**40, 1, context)

    def eval_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return self._read(5_000, 2, context)

    def _read(self, count: int, seed: int, context: phalanx.Context) -> tf.data.Dataset:
        """Generate each click from its index, so that all tasks agree on the data."""
        data = tf.data.Dataset.range(count).shard(context.num_shards, context.shard)
        data = data.batch(context.batch_size)
        return data.map(lambda numbers: self._make_clicks(numbers, seed), tf.data.AUTOTUNE)

    def _make_clicks(self, numbers: Any, seed: int) -> Any:
        seeds = tf.stack([numbers, tf.fill(tf.shape(numbers), tf.cast(seed, tf.int64))], 1)
        uniform = tf.map_fn(
            lambda one: tf.random.stateless_uniform([4], one, dtype=tf.float32),
            seeds,
            fn_output_signature=tf.TensorSpec([4], tf.float32),
        )
        user, item, same, noise = tf.unstack(uniform, axis=1)
        user = tf.cast(user * float(self.users), tf.int64)
        item = tf.cast(item * float(self.items), tf.int64)
        # About half of the items have the user's category.
        item = tf.where(same < 0.5, item - item % CATEGORIES + user % CATEGORIES, item)
        item = tf.minimum(item, self.items - 1)
        likes = user % CATEGORIES == item % CATEGORIES
        clicked = tf.where(noise < 0.9, likes, tf.logical_not(likes))
        return {"user": user, "item": item}, tf.cast(clicked, tf.float32)[:, None]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--width", type=int, default=16, help="the size of an embedding vector")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    phalanx.RunConfig.add_flags(parser)
    parser.set_defaults(train_steps=1500, global_batch_size=384)
    arguments = parser.parse_args()
    experiment = Clicks(arguments.users, arguments.items, arguments.width, arguments.learning_rate)
    result = phalanx.run(experiment, phalanx.RunConfig.from_flags(arguments))
    if result.metrics:
        print(f"\n  accuracy      {result.metrics['accuracy']:.1%} (at best 90%)")
        if result.examples_per_second:  # 0 for an evaluator
            print(f"  speed         {result.examples_per_second:,.0f} examples/s")
        print(f"  checkpoints   {result.model_dir} (step {result.step})\n")


if __name__ == "__main__":
    main()
