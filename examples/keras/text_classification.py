"""Classify texts with a TextVectorization layer inside the model.

    python examples/keras/text_classification.py
    phalanx run --workers 2 examples/keras/text_classification.py
    phalanx run --workers 2 --ps 1 examples/keras/text_classification.py

One line differs from a program for plain Keras, where it begins with `model.fit(`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import phalanx  # isort: skip

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EPOCHS = int(os.environ.get("EPOCHS", "5"))
NUM_EXAMPLES = int(os.environ.get("EXAMPLES", "3000"))

# Prepare the data: reviews of a few words, of which some are praise or criticism.
random = np.random.default_rng(0)
praise = ["wonderful", "delightful", "clever", "charming", "moving"]
criticism = ["dull", "tedious", "clumsy", "shallow", "predictable"]
neutral = ["the", "film", "story", "with", "actors", "a", "scene", "music", "and", "plot", "is"]


def write_reviews(count):
    labels = random.integers(2, size=count)
    texts = []
    for label in labels:
        words = [*random.choice(neutral, 12), *random.choice(praise if label else criticism, 2)]
        texts.append(" ".join(random.permutation(words)))
    return tf.data.Dataset.from_tensor_slices((texts, labels))


train_data = write_reviews(NUM_EXAMPLES).shuffle(1000).batch(48)
test_data = write_reviews(NUM_EXAMPLES // 4).batch(48)

# Build the model: it takes strings.
keras.utils.set_random_seed(1)
vectorize = layers.TextVectorization(max_tokens=200, output_sequence_length=16)
vectorize.adapt(train_data.map(lambda text, label: text))
model = keras.Sequential(
    [
        keras.Input((), dtype="string"),
        vectorize,
        layers.Embedding(200, 16, mask_zero=True),
        layers.GlobalAveragePooling1D(),
        layers.Dense(16, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

history = phalanx.fit(model, train_data, epochs=EPOCHS, validation_data=test_data, verbose=2)

probability = model.predict(tf.constant(["a charming and clever film"]), verbose=0)[0, 0]
print(f"validation accuracy: {history.history['val_accuracy'][-1]:.1%}")
print(f"probability that the review is positive: {probability:.2f}")
