"""Training throughput of ResNet-44 on images of 32 x 32: Phalanx, Keras 3, tf_keras and PyTorch.

The global batch is 128 and all contestants use the same cores: one process uses all cores, two
processes use one each. The data is in memory, except for `from_files`, which reads and augments
TFRecords. `limit` is the upper bound of the cores, if the network consisted of large matrix
products only. Contestants that are not installed are skipped with a hint how to install them.
"""

import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cifar10_peers as peers
from clusters import figure, run_cluster

NUM_LAYERS = int(os.environ.get("BENCH_LAYERS", "44"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
WARM_UP, STEPS = 4, 16

ONE = {"chief": 1}
TWO = {"worker": 2}
ON_PS = {"chief": 1, "worker": 1, "ps": 1}

# The package that each contestant needs, and the tasks it runs on.
CONTESTANTS: dict[str, tuple[str, dict[str, int]]] = {
    "one_process": ("tensorflow", ONE),
    "in_step": ("tensorflow", TWO),
    "from_files": ("tensorflow", TWO),
    "async": ("tensorflow", ON_PS),
    "in_step_bfloat16": ("tensorflow", TWO),
    "keras_fit": ("tensorflow", ONE),
    "tf_keras_fit": ("tf_keras", TWO),
    "torch": ("torch", ONE),
    "torch_ddp": ("torch", TWO),
    "torch_ddp_bfloat16": ("torch", TWO),
    "limit": ("tensorflow", TWO),
    "limit_bfloat16": ("tensorflow", TWO),
}
INSTALL = {
    "tensorflow": "pip install 'phalanx[cpu]'",
    # Its dependencies would install TensorFlow for GPUs.
    "tf_keras": "pip install --no-deps tf-keras==2.21.0",
    "torch": "pip install torch==2.13.0",
}
PEERS: dict[str, Callable[..., float]] = {
    "keras_fit": peers.train_keras,
    "tf_keras_fit": peers.train_tf_keras,
    "torch": peers.train_torch,
    "torch_ddp": peers.train_torch,
    "torch_ddp_bfloat16": partial(peers.train_torch, bfloat16=True),
}
# Contestant, baseline, and the goal for the ratio.
RATIOS = [
    ("in_step", "keras_fit", 2.0),
    ("in_step", "torch_ddp", 1.15),
    ("async", "in_step", 0.95),
    ("from_files", "in_step", 0.97),
    ("in_step_bfloat16", "keras_fit", 2.0),
    ("in_step_bfloat16", "torch_ddp_bfloat16", 1.15),
    ("in_step", "limit", 0.85),
    ("in_step_bfloat16", "limit_bfloat16", 0.85),
]


def train_phalanx(contestant: str, data_dir: str) -> None:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.models.resnet import resnet
    from phalanx.train.loop.session import Session

    set_threads()
    if contestant == "from_files":
        sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "cifar10"))
        from pictures import Cifar10Images

    def train_data(context: phalanx.Context) -> tf.data.Dataset:
        if contestant == "from_files":
            return Cifar10Images(data_dir).train(context.batch_size, context).repeat()
        return tf.data.Dataset.from_tensors(peers.make_arrays(context.batch_size)).cache().repeat()

    def optimizer() -> Any:
        sgd = keras.optimizers.SGD(0.01, momentum=0.9, weight_decay=2e-3)
        sgd.exclude_from_weight_decay(var_names=["gamma", "beta", "bias"])
        return sgd

    class Clock(phalanx.hooks.Hook):
        start: tuple[float, float] | None = None
        speed = 0.0

        def after_step(self, session: Session) -> None:
            now = time.perf_counter()
            if self.start is not None:
                self.speed = (session.examples - self.start[0]) / (now - self.start[1])
            elif session.examples >= WARM_UP * peers.BATCH:
                self.start = (session.examples, now)

    clock = Clock()
    updates_per_batch = 2 if contestant == "async" else 1
    with tempfile.TemporaryDirectory() as directory:
        config = phalanx.RunConfig(
            model_dir=directory,
            train_steps=(WARM_UP + STEPS) * updates_per_batch,
            global_batch_size=peers.BATCH,
            mixed_precision="bfloat16" if contestant.endswith("bfloat16") else None,
            log_steps=None,
            summary_steps=None,
        )
        experiment = phalanx.Experiment(
            model=lambda: resnet(NUM_LAYERS, weight_decay=0.0),
            train_data=train_data,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy()],
            optimizer=optimizer,
        )
        phalanx.run(experiment, config, hooks=[clock])
    print(f"SPEED {clock.speed}", flush=True)


def measure_limit(contestant: str) -> None:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    import tensorflow as tf

    from phalanx.models.resnet import resnet

    set_threads()
    network = resnet(NUM_LAYERS)
    convolutions = [layer for layer in network.layers if layer.name.endswith("_conv")]
    pixels = [layer.output.shape[1] * layer.output.shape[2] for layer in convolutions]
    weights = [layer.count_params() for layer in convolutions]
    # A multiplication and an addition each; one forward pass, twice as much for the backward pass.
    operations = 6 * sum(map(math.prod, zip(pixels, weights, strict=True)))
    size, times = 1024, 60
    square = tf.random.normal((size, size))
    if contestant.endswith("bfloat16"):
        square = tf.cast(square, tf.bfloat16)
    multiply = tf.function(lambda: tf.reduce_max(square @ square))
    started = 0.0
    for number in range(2 * times):
        if number == times:
            started = time.perf_counter()
        multiply().numpy()
    speed = times * 2 * size**3 / (time.perf_counter() - started)
    print(f"SPEED {2 * speed / operations}", flush=True)


def set_threads() -> None:
    import tensorflow as tf

    if "BENCH_THREADS" in os.environ:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)


def main() -> None:
    shapes = {}
    for name, (needed, shape) in CONTESTANTS.items():
        if importlib.util.find_spec(needed) is None:
            print(f"{name} is skipped; to include it: {INSTALL[needed]}", flush=True)
        else:
            shapes[name] = shape
    speeds: dict[str, list[float]] = {name: [] for name in shapes}
    with tempfile.TemporaryDirectory() as directory:
        from phalanx.data.datasets import make_synthetic

        make_synthetic(directory, count=5000)
        for number in range(ROUNDS):
            for name, shape in shapes.items():
                threads = 0 if shape == ONE else 1
                output = run_cluster(
                    Path(__file__), shape, name, directory, threads=threads, seconds=900
                )
                speeds[name].append(figure(output, "SPEED"))
                print(f"round {number + 1}: {name:18} {speeds[name][-1]:6.1f} examples/s",
                      flush=True)  # fmt: skip
    for name, baseline, goal in RATIOS:
        if baseline in speeds:
            pairs = zip(speeds[name], speeds[baseline], strict=True)
            ratio = statistics.median(speed / base for speed, base in pairs)
            print(f"RESULT cifar10_{name}_over_{baseline} {ratio:.2f} x goal >= {goal}")


if __name__ == "__main__":
    if sys.argv[2:]:
        name, data_dir = sys.argv[1:]
        if name in PEERS:
            print(f"SPEED {PEERS[name](NUM_LAYERS, WARM_UP, STEPS)}", flush=True)
        elif name.startswith("limit"):
            measure_limit(name)
        else:
            train_phalanx(name, data_dir)
    else:
        main()
