from __future__ import annotations

import pytest

keras = pytest.importorskip("keras", reason="needs phalanx[cpu]")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from phalanx.models.batch_norm import FusedBatchNormalization  # noqa: E402


@pytest.mark.parametrize("training", [True, False])
def test_fused_batch_normalization_equals_keras(training: bool) -> None:
    x = tf.random.stateless_normal((8, 5, 6, 3), seed=(1, 2), mean=2.0)
    ours = FusedBatchNormalization(momentum=0.9, epsilon=1e-3)
    keras_layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-3)
    for layer in (ours, keras_layer):
        layer.build(x.shape)
        layer.gamma.assign([1.0, 2.0, 3.0])
        layer.beta.assign([0.0, 1.0, -1.0])
        layer.moving_mean.assign([0.5, 0.0, 1.0])
    results = []
    for layer in (ours, keras_layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
            loss = tf.reduce_sum(y**3)
        results.append((y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])))
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(ours.moving_mean, keras_layer.moving_mean, rtol=1e-5)
    # TensorFlow's operation keeps the unbiased variance: n / (n - 1) times that of Keras.
    np.testing.assert_allclose(ours.moving_variance, keras_layer.moving_variance, rtol=1e-3)
