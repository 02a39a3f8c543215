"""Models whose own `train_step` draws random numbers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops, optimizers
from tests.parity.custom_steps import CUSTOM_STEPS, GAN, VAE, case, compile_gan

__all__ = ["CUSTOM_STEPS"]


class NoisyGAN(GAN):
    """Draws the noise itself, twice for each step, as the examples of Keras do."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def train_step(self, data: Any) -> dict[str, Any]:
        real, noise = data
        logs: dict[str, Any] = super().train_step((real, self.draw(noise)))
        with tf.GradientTape() as tape:
            loss = ops.mean(self.generator(self.draw(noise)) ** 2)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(loss, weights), weights)
        return logs

    def draw(self, noise: Any) -> Any:
        return keras.random.normal(ops.shape(noise), seed=self.seeds)


@case("GAN that draws random numbers")
def noisy_gan() -> Any:
    return compile_gan(NoisyGAN())


class NoisyVAE(VAE):
    """Draws before the only call of its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def train_step(self, data: Any) -> dict[str, Any]:
        noise = keras.random.normal(ops.shape(data[0]), seed=self.seeds)
        logs: dict[str, Any] = super().train_step((data[0] + 0.1 * noise,))
        return logs


@case("VAE that draws random numbers")
def noisy_vae() -> Any:
    model = NoisyVAE()
    model.compile(optimizers.Adam(0.01))
    return model
