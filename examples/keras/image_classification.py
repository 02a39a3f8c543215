"""Classify images with a small convolutional network, data augmentation and callbacks.

    python examples/keras/image_classification.py
    phalanx run --workers 2 examples/keras/image_classification.py
    phalanx run --workers 2 --ps 1 examples/keras/image_classification.py

One line differs from a program for plain Keras, where it begins with `model.fit(`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import phalanx  # isort: skip

import keras
import numpy as np
from keras import layers

NUM_CLASSES = 4
EPOCHS = int(os.environ.get("EPOCHS", "10"))
NUM_EXAMPLES = int(os.environ.get("EXAMPLES", "2000"))

# Prepare the data: a bright stripe in one of four directions, in noise.
random = np.random.default_rng(0)


def draw_images(count):
    labels = random.integers(NUM_CLASSES, size=count)
    images = random.normal(0.3, 0.15, size=(count, 24, 24, 1))
    rows, columns = np.mgrid[:24, :24]
    stripes = [rows == 12, columns == 12, rows == columns, rows + columns == 23]
    for image, label in zip(images, labels, strict=True):
        image[stripes[label]] += 0.6
    return images.astype("float32"), labels


x_train, y_train = draw_images(NUM_EXAMPLES)
x_test, y_test = draw_images(NUM_EXAMPLES // 4)

# Build the model. The augmentation layers are active in training only.
keras.utils.set_random_seed(1)
inputs = keras.Input((24, 24, 1))
x = layers.RandomTranslation(0.1, 0.1)(inputs)
x = layers.RandomContrast(0.2)(x)
for filters in (16, 32):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
x = layers.GlobalMaxPooling2D()(x)
x = layers.Dropout(0.2)(x)
outputs = layers.Dense(NUM_CLASSES, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

# Train it, and keep the best weights.
callbacks = [
    keras.callbacks.EarlyStopping("val_loss", patience=4, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2),
    keras.callbacks.ModelCheckpoint("best.keras", "val_accuracy", save_best_only=True),
    keras.callbacks.CSVLogger("history.csv"),
]
options = {"batch_size": 60, "epochs": EPOCHS, "validation_split": 0.1, "verbose": 2}
history = phalanx.fit(model, x_train, y_train, callbacks=callbacks, **options)

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy: {accuracy:.1%} after {len(history.epoch)} epochs")
