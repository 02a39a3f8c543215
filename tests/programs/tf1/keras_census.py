"""Trains a Keras model of the shape of examples/tf1/wide_deep.py, and prints its accuracy."""

import sys

import numpy as np
import tensorflow as tf

sys.path.insert(0, sys.argv[1])
from wide_deep import EDUCATION, WORK, generate


def encode(features):
    education = np.searchsorted(sorted(EDUCATION), features["education"])
    work = np.searchsorted(sorted(WORK), features["work"])
    bucket = np.digitize(features["age"], [25, 30, 35, 40, 45, 50, 55, 60, 65])
    job = np.array([int(each[3:]) for each in features["occupation"]])

    def one_hot(ids, count):
        return np.eye(count, dtype=np.float32)[ids]

    wide = [
        one_hot(education, 5),
        one_hot(work, 4),
        one_hot(job, 50),
        one_hot(bucket, 10),
        one_hot(education * 4 + work, 20),
    ]
    numbers = np.stack([(features["age"] - 46) / 16, (features["hours"] - 35) / 14], 1)
    deep = [numbers, one_hot(education, 5), one_hot(work, 4)]
    return [np.concatenate(wide, 1), np.concatenate(deep, 1).astype(np.float32), job]


def main():
    layers = tf.keras.layers
    wide, deep = tf.keras.Input((89,)), tf.keras.Input((11,))
    job = tf.keras.Input((), dtype="int32")
    x = layers.concatenate([deep, layers.Embedding(50, 8)(job)])
    for units in (64, 32):
        x = layers.Dense(units, activation="relu")(x)
    logits = layers.add([layers.Dense(1)(x), layers.Dense(1)(wide)])
    model = tf.keras.Model([wide, deep, job], layers.Activation("sigmoid")(logits))
    model.compile(tf.keras.optimizers.Adagrad(0.05), "binary_crossentropy", metrics=["accuracy"])
    features, labels = generate(10000, seed=1)
    model.fit(encode(features), labels, batch_size=100, epochs=6, verbose=0)
    features, labels = generate(4000, seed=2)
    _, accuracy = model.evaluate(encode(features), labels, verbose=0)
    print("accuracy: %.4f" % accuracy)


if __name__ == "__main__":
    main()
