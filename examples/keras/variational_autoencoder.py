"""A variational autoencoder with its own train_step.

    python examples/keras/variational_autoencoder.py
    phalanx run --workers 2 examples/keras/variational_autoencoder.py
    phalanx run --workers 2 --ps 1 examples/keras/variational_autoencoder.py

One line differs from a program for plain Keras, where it begins with `vae.fit(`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import phalanx  # isort: skip

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EPOCHS = int(os.environ.get("EPOCHS", "10"))
NUM_EXAMPLES = int(os.environ.get("EXAMPLES", "2000"))
LATENT_SIZE = 2


class Sampling(layers.Layer):
    """Draws a point from the distribution that the encoder gives."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class VariationalAutoencoder(keras.Model):
    def __init__(self, encoder, decoder, **options):
        super().__init__(**options)
        self.encoder = encoder
        self.decoder = decoder
        self.total_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.divergence_tracker = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self):
        return [self.total_tracker, self.reconstruction_tracker, self.divergence_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance, point = self.encoder(data)
            errors = keras.losses.binary_crossentropy(data, self.decoder(point))
            reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            total = reconstruction + divergence
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total_tracker.update_state(total)
        self.reconstruction_tracker.update_state(reconstruction)
        self.divergence_tracker.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}


# Prepare the data: a disc of any size and brightness.
random = np.random.default_rng(0)
rows, columns = np.mgrid[:16, :16] - 7.5
radii = random.uniform(2, 7, size=(NUM_EXAMPLES, 1, 1))
brightness = random.uniform(0.4, 1.0, size=(NUM_EXAMPLES, 1, 1))
images = (brightness * (rows**2 + columns**2 < radii**2)).astype("float32")[..., None]

# Build the encoder and the decoder.
keras.utils.set_random_seed(1)
inputs = keras.Input((16, 16, 1))
x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(inputs)
x = layers.Flatten()(x)
x = layers.Dense(32, activation="relu")(x)
mean = layers.Dense(LATENT_SIZE, name="mean")(x)
log_variance = layers.Dense(LATENT_SIZE, name="log_variance")(x)
encoder = keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])

latent = keras.Input((LATENT_SIZE,))
x = layers.Dense(8 * 8 * 8, activation="relu")(latent)
x = layers.Reshape((8, 8, 8))(x)
x = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(x)
decoder = keras.Model(latent, layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x))

vae = VariationalAutoencoder(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam(0.003))
history = phalanx.fit(vae, images, epochs=EPOCHS, batch_size=60, verbose=2)

drawn = decoder.predict(np.zeros((1, LATENT_SIZE)), verbose=0)[0]
print(f"loss: {history.history['loss'][0]:.1f} before, {history.history['loss'][-1]:.1f} after")
print(f"brightness of the average image: {drawn.mean():.2f}")
