"""Stage 2: the same program as an experiment, with a Keras model in place of the model_fn.

python examples/tf1/porting/experiment.py --model-dir runs/experiment
python examples/tf1/porting/experiment.py --model-dir runs/next --warm-start runs/estimator
phalanx run --ps 1 --workers 2 examples/tf1/porting/experiment.py --model-dir runs/cluster
"""

import argparse

import digits
import keras
import tensorflow as tf

import phalanx


class Digits(phalanx.Experiment):
    def __init__(self, units, rate):
        self.units = units
        self.rate = rate

    def model(self):
        return keras.Sequential(
            [
                keras.Input((digits.PIXELS,)),
                keras.layers.Dense(self.units, activation="relu", name="hidden"),
                keras.layers.Dense(digits.CLASSES, name="logits"),
            ]
        )

    def loss(self, labels, logits):
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    def optimizer(self):
        return keras.optimizers.Adam(self.rate)

    def metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def train_data(self, context):
        data = tf.data.Dataset.from_tensor_slices(digits.read("train"))
        data = data.shard(context.num_shards, context.shard)
        return data.shuffle(6000).batch(context.batch_size, drop_remainder=True)

    def eval_data(self, context):
        data = tf.data.Dataset.from_tensor_slices(digits.read("test"))
        return data.shard(context.num_shards, context.shard).batch(100)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--warm-start", help="begin with a checkpoint, for example of stage 1")
    phalanx.RunConfig.add_flags(parser)
    parser.set_defaults(model_dir="runs/experiment", train_steps=1000, global_batch_size=60)
    arguments = parser.parse_args()
    hooks = []
    if arguments.warm_start:
        hooks.append(phalanx.hooks.LoadCheckpoint(arguments.warm_start))
    config = phalanx.RunConfig.from_flags(arguments)
    result = phalanx.run(Digits(units=32, rate=0.001), config, hooks=hooks)
    if result.metrics:
        print(f"accuracy {result.metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
