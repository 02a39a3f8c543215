"""The baselines of benchmarks/cifar10.py: the same ResNet in Keras, tf_keras and PyTorch.

Each function trains for `warm_up + steps` steps and returns the examples per second of the last
`steps`.
"""

import json
import os
import time
from typing import Any

import numpy as np

BATCH = 128
FILTERS = (16, 32, 64)


def make_arrays(size: int) -> tuple[Any, Any]:
    """Return random images and labels."""
    random = np.random.default_rng(0)
    images = random.normal(size=(size, 32, 32, 3)).astype("float32")
    return images, random.integers(0, 10, size)


def train_keras(num_layers: int, warm_up: int, steps: int) -> float:
    """Train with Keras 3's `fit`, with its default settings."""
    import keras

    return _fit(keras, keras.ops.pad, num_layers, warm_up, steps, BATCH)


def train_tf_keras(num_layers: int, warm_up: int, steps: int) -> float:
    """Train with tf_keras' `fit` on two workers, under MultiWorkerMirroredStrategy."""
    import tensorflow as tf
    import tf_keras

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        return _fit(tf_keras, tf.pad, num_layers, warm_up, steps, BATCH)


def _fit(keras: Any, pad: Any, num_layers: int, warm_up: int, steps: int, batch: int) -> float:
    import tensorflow as tf

    class Clock(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        started = ended = 0.0

        def on_train_batch_end(self, number: int, logs: Any = None) -> None:
            self.ended = time.perf_counter()
            if number + 1 == warm_up:
                self.started = self.ended

    model = _make_keras_model(keras, pad, num_layers)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    data = tf.data.Dataset.from_tensors(make_arrays(batch)).unbatch().batch(batch).cache().repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = data.with_options(options).prefetch(2)
    clock = Clock()
    model.fit(data, epochs=1, steps_per_epoch=warm_up + steps, verbose=0, callbacks=[clock])
    return batch * steps / (clock.ended - clock.started)


def _make_keras_model(keras: Any, pad: Any, num_layers: int) -> Any:
    layers = keras.layers

    def convolve(x: Any, filters: int, stride: int = 1) -> Any:
        x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolve(inputs, FILTERS[0]))
    for stage, filters in enumerate(FILTERS):
        for unit in range((num_layers - 2) // 6):
            stride = 2 if stage and not unit else 1
            y = convolve(layers.ReLU()(convolve(x, filters, stride)), filters)
            if stride == 2:
                x = layers.AveragePooling2D(2)(x)
                x = pad(x, [[0, 0], [0, 0], [0, 0], [filters // 4, filters // 4]])
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def train_torch(num_layers: int, warm_up: int, steps: int, bfloat16: bool = False) -> float:
    """Train with eager PyTorch, channels last; on a cluster, with DistributedDataParallel."""
    import torch

    torch.manual_seed(0)
    model: Any = _make_torch_model(num_layers).to(memory_format=torch.channels_last)
    processes = 1
    if "TF_CONFIG" in os.environ:
        config = json.loads(os.environ["TF_CONFIG"])
        addresses = config["cluster"]["worker"]
        processes = len(addresses)
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{addresses[0]}",
            rank=config["task"]["index"],
            world_size=processes,
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    images, labels = make_arrays(BATCH // processes)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    y = torch.from_numpy(labels)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=2e-4)
    started = 0.0
    for number in range(warm_up + steps):
        if number == warm_up:
            started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
    speed = BATCH * steps / (time.perf_counter() - started)
    if processes > 1:
        torch.distributed.destroy_process_group()
    return speed


def _make_torch_model(num_layers: int) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    def convolve(in_channels: int, filters: int, stride: int = 1) -> nn.Sequential:
        convolution = nn.Conv2d(in_channels, filters, 3, stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(filters))

    class Unit(nn.Module):
        def __init__(self, in_channels: int, filters: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = (
                convolve(in_channels, filters, stride),
                convolve(filters, filters),
            )
            self.stride, self.missing = stride, filters - in_channels

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.second(functional.relu(self.first(x), inplace=True))
            if self.stride == 2:
                x = functional.avg_pool2d(x, 2)
                x = functional.pad(x, (0, 0, 0, 0, self.missing // 2, self.missing // 2))
            return functional.relu(x + y, inplace=True)

    units: list[nn.Module] = []
    in_channels = FILTERS[0]
    for stage, filters in enumerate(FILTERS):
        for unit in range((num_layers - 2) // 6):
            units.append(Unit(in_channels, filters, 2 if stage and not unit else 1))
            in_channels = filters
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(FILTERS[-1], 10)]
    return nn.Sequential(convolve(3, FILTERS[0]), nn.ReLU(inplace=True), *units, *head)
