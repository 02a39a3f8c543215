"""Updates per second on a parameter server, relative to a bare ClusterCoordinator.

A tiny model of seven dense layers, 1 ps and 2 workers (the chief only coordinates), so that round
trips dominate. Both contestants run on clusters of the same shape, in turn, for several rounds.
"""

import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from clusters import figure, run_cluster

ROUNDS = 3
SHAPE = {"chief": 1, "worker": 2, "ps": 1}
BATCH = 32


def make_model() -> Any:
    import keras

    layers = [keras.layers.Dense(16, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def make_data() -> Any:
    import tensorflow as tf

    x = tf.random.stateless_normal([BATCH * 50, 16], seed=[1, 2])
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


def run_phalanx() -> None:
    import phalanx
    from phalanx.train.loop.session import Session

    class Speed(phalanx.hooks.Hook):
        """Measures updates per second between the first quarter of the run and its end."""

        start: tuple[int, float] | None = None

        def after_step(self, session: Session) -> None:
            if self.start is None and session.step >= 1000:
                self.start = (session.step, time.perf_counter())
            elif self.start is not None:
                self.figure = (session.step - self.start[0]) / (time.perf_counter() - self.start[1])

    speed = Speed()
    experiment = phalanx.Experiment(
        model=make_model, train_data=lambda context: make_data(), name="ps_steps"
    )
    with tempfile.TemporaryDirectory() as directory:
        config = phalanx.RunConfig(
            model_dir=directory,
            train_steps=4000,
            global_batch_size=BATCH * 2,
            chief_trains=False,
            log_steps=None,
            summary_steps=None,
        )
        result = phalanx.run(experiment, config, hooks=[speed])
    if result.step:
        print(f"SPEED {speed.figure}", flush=True)


def run_bare() -> None:
    coordinator, strategy = connect_coordinator()
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    step = make_plain_step(model, model.optimizer, mean_square, strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: make_data().repeat()))
    for steps in (50, 400):
        started = time.perf_counter()
        for _ in range(steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        speed = steps / (time.perf_counter() - started)
    print(f"SPEED {speed}", flush=True)
    os._exit(0)


def mean_square(y: Any, predicted: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(tf.square(predicted - y))


def connect_coordinator() -> tuple[Any, Any]:
    """Return a coordinator and its strategy on the chief; serve and exit in any other task."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    spec, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    if task["type"] != "chief":
        tf.distribute.Server(spec, task["type"], task["index"])
        # A bare server gets no message when the chief is done, so it polls the chief's address.
        host, port = config["cluster"]["chief"][0].split(":")
        for expected in (True, False):
            while is_listening(host, int(port)) is not expected:
                time.sleep(0.5)
        os._exit(0)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy), strategy


def make_plain_step(model: Any, optimizer: Any, compute_loss: Any, strategy: Any) -> Any:
    """Return a training step as TensorFlow's guides write it."""
    import tensorflow as tf

    @tf.function
    def step(iterator: Any) -> Any:
        def replica(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = compute_loss(y, model(x, training=True))
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        return strategy.run(replica, args=(next(iterator),))

    return step


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def main() -> None:
    speeds: dict[str, list[float]] = {"bare": [], "phalanx": []}
    for number in range(ROUNDS):
        for name, rounds in speeds.items():
            rounds.append(figure(run_cluster(Path(__file__), SHAPE, name), "SPEED"))
            print(f"round {number + 1}: {name} {rounds[-1]:.0f} updates/s", flush=True)
    ratio = statistics.median(
        speed / bare for speed, bare in zip(speeds["phalanx"], speeds["bare"], strict=True)
    )
    print(f"RESULT ps_updates_vs_bare {ratio:.2f} x goal >= 8")


if __name__ == "__main__":
    {"phalanx": run_phalanx, "bare": run_bare}.get(sys.argv[1] if sys.argv[1:] else "", main)()
