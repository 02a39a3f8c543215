"""A TensorFlow 2 program with a custom training loop. It uses Phalanx only to read its task.

    phalanx run --workers 2 --ps 2 examples/plain_tensorflow/train.py

The chief dispatches steps to the workers. The parameter servers hold the variables.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import phalanx

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--train-steps", type=int, default=400)
parser.add_argument("--batch-size", type=int, default=64)
FLAGS = parser.parse_args()

CLASSES = 10
PIXELS = 256


def make_images(count, seed):
    """Draw ten patterns with noise; an untrained model has an accuracy of about 10 %."""
    patterns = tf.random.stateless_normal([CLASSES, PIXELS], seed=[1, 1])
    labels = tf.random.stateless_uniform([count], [seed, 2], 0, CLASSES, tf.int32)
    noise = 2.0 * tf.random.stateless_normal([count, PIXELS], seed=[seed, 3])
    return tf.gather(patterns, labels) + noise, labels


def make_dataset(context=None):
    images, labels = make_images(8192, seed=7)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.repeat().shuffle(8192).batch(FLAGS.batch_size, drop_remainder=True)


def serve(config):
    """Execute the operations that the chief sends, until this process is terminated."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    server = tf.distribute.Server(cluster, job_name=config.task.role, task_index=config.task.index)
    print(f"{config.task} serves on {config.cluster.addresses[config.task]}")
    server.join()


def train():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([PIXELS]),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(CLASSES),
            ]
        )
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(batches):
        def on_replica(batch):
            images, labels = batch
            with tf.GradientTape() as tape:
                loss = loss_function(labels, model(images, training=True))
            variables = model.trainable_variables
            gradients = tape.gradient(loss, [variable.value for variable in variables])
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return strategy.run(on_replica, args=(next(batches),))

    batches = iter(coordinator.create_per_worker_dataset(make_dataset))
    started = time.monotonic()
    for number in range(1, FLAGS.train_steps + 1):
        loss = coordinator.schedule(step, args=(batches,))
        if number % 100 == 0:
            coordinator.join()
            print(f"step {number}: loss {loss.fetch():.4f}")
    coordinator.join()
    rate = FLAGS.train_steps * FLAGS.batch_size / (time.monotonic() - started)
    images, labels = make_images(2048, seed=8)
    correct = tf.argmax(model(images), axis=1, output_type=tf.int32) == labels
    accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
    print(f"accuracy {accuracy:.1%} on new images, {rate:.0f} examples/s in training")


if __name__ == "__main__":
    config = phalanx.detect()
    if config.is_chief():
        train()
    else:
        serve(config)
