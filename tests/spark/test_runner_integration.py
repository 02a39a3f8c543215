"""`run` on a real Spark with executors in processes of their own."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.servers.processes import wait_for

from phalanx.errors import ConfigurationError, JobError, LaunchError, WorkerError
from phalanx.spark import MirroredStrategyRunner, dataset, run

pytestmark = pytest.mark.slow


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_every_task_has_the_cluster_and_its_own_gpu(cluster: Any) -> None:
    def train(directory: str) -> None:
        place = json.loads(os.environ["TF_CONFIG"])["task"]
        name = f"{place['type']}-{place['index']}"
        told = {key: os.environ.get(key) for key in ("TF_CONFIG", "CUDA_VISIBLE_DEVICES")}
        told["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
        with open(f"{directory}/{name}", "w") as file:  # noqa: PTH123
            json.dump(told, file)

    directory = Path(cluster.sparkContext.getConf().get("spark.local.dir")) / "told"
    directory.mkdir()
    run(train, arguments={"directory": str(directory)}, workers=2, ps=1, spark=cluster)
    told = {path.name: json.loads(path.read_text()) for path in directory.iterdir()}
    assert sorted(told) == ["chief-0", "ps-0", "worker-0", "worker-1"]
    clusters = [json.loads(each["TF_CONFIG"])["cluster"] for each in told.values()]
    assert all(each == clusters[0] for each in clusters)
    assert {role: len(hosts) for role, hosts in clusters[0].items()} == {
        "chief": 1, "worker": 2, "ps": 1,
    }  # fmt: skip
    visible = {name: each["CUDA_VISIBLE_DEVICES"] for name, each in told.items()}
    assert visible.pop("ps-0") == ""
    assert set(visible.values()) == {"3", "7"}

    def see() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    assert run(see, workers=1, gpus_per_task=2, spark=cluster) == "3,7"
    assert run(see, workers=1, gpus_per_task=0, spark=cluster) == ""


def test_failed_task_ends_the_stage_with_its_traceback(cluster: Any) -> None:
    def train() -> None:
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
            raise ValueError("bad luck")
        time.sleep(600)

    with pytest.raises(WorkerError, match=r"(?s)^worker-0 failed:\nTraceback.*bad luck$"):
        run(train, workers=1, spark=cluster)
    assert cluster.range(10).count() == 10


def test_too_few_slots_raise(cluster: Any) -> None:
    with pytest.raises(JobError, match=r"need 8 slots at the same time, but \d of Spark's 4 are"):
        run(print, workers=7, wait_seconds=1, spark=cluster)
    with pytest.raises(JobError, match="need 3 slots at the same time"):
        run(print, workers=2, gpus_per_task=2, wait_seconds=1, spark=cluster)


def test_cancelled_job_leaves_no_process(cluster: Any, tmp_path: Path) -> None:
    def train(directory: str) -> None:
        import pathlib

        new = pathlib.Path(directory, f"{os.getpid()}")
        new.write_text(sys.argv[1])
        time.sleep(600)

    folders: list[str] = []

    def cancel() -> None:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        folders.extend(path.read_text() for path in tmp_path.iterdir())
        assert all(Path(folder).is_dir() for folder in folders)
        cluster.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(LaunchError, match="cancel"):
        run(train, arguments={"directory": str(tmp_path)}, workers=1, spark=cluster)
    thread.join()
    pids = [int(path.name) for path in tmp_path.iterdir()]
    wait_for(lambda: not any(map(is_alive, pids)))
    wait_for(lambda: not any(Path(path).exists() for path in folders))


def test_killed_executor_leaves_no_process_and_the_job_restarts(
    cluster: Any, tmp_path: Path
) -> None:
    def train(directory: str) -> str:
        import pathlib

        place = json.loads(os.environ["TF_CONFIG"])["task"]
        first = pathlib.Path(directory, f"first-{place['type']}")
        if first.exists():
            return "second"
        # The JVM above Spark's daemon and its worker, above our guardian's and supervisor's.
        first.with_name(f"{first.name}.new").write_text(f"{os.getpid()} {_executor(os.getpid())}")
        first.with_name(f"{first.name}.new").rename(first)
        time.sleep(600)
        return "first"

    def _executor(pid: int) -> int:
        import pathlib

        while "java" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode():
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid

    def kill() -> None:
        wait_for((tmp_path / "first-worker").exists)
        wait_for((tmp_path / "first-chief").exists)
        os.kill(int((tmp_path / "first-worker").read_text().split()[1]), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    shown: list[str] = []
    result = run(
        train,
        arguments={"directory": str(tmp_path)},
        workers=1,
        restarts=2,
        wait_seconds=120,
        log=shown.append,
        spark=cluster,
    )
    thread.join()
    assert result == "second"
    assert any("restarting all tasks" in line for line in shown)
    pids = [int(path.read_text().split()[0]) for path in tmp_path.glob("first-*")]
    wait_for(lambda: not any(map(is_alive, pids)))


def test_mirrored_strategy_runner_trains_synchronously(cluster: Any) -> None:
    def train(learning_rate: float) -> dict[str, Any]:
        import keras
        import numpy as np
        import tensorflow as tf

        strategy = tf.distribute.get_strategy()
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(learning_rate)
        optimizer.build(model.trainable_variables)
        place = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        x = np.random.default_rng(place).normal(size=(32, 2)).astype("float32")

        @tf.function  # type: ignore[untyped-decorator]
        def step(x: Any) -> Any:
            def replica(x: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
                values = [variable.value for variable in model.trainable_variables]
                optimizer.apply_gradients(
                    zip(tape.gradient(loss, values), model.trainable_variables, strict=True)
                )
                return loss

            return strategy.run(replica, (x,))

        losses = [float(strategy.reduce("mean", step(tf.constant(x)), None)) for _ in range(20)]
        return {"replicas": strategy.num_replicas_in_sync, "losses": losses}

    result = MirroredStrategyRunner(num_slots=2, use_gpu=False).run(train, learning_rate=0.1)
    assert result["replicas"] == 2
    assert result["losses"][-1] < result["losses"][0] / 10


def test_mirrored_strategy_runner_uses_as_many_gpus_as_slots(cluster: Any) -> None:
    def see() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    runner = MirroredStrategyRunner(num_slots=2, use_custom_strategy=True)
    assert runner.run(see) in ("3", "7")


def test_function_can_use_the_context_of_its_barrier_stage(cluster: Any) -> None:
    def ask() -> tuple[int, int, list[str]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        context.barrier()
        told = context.allGather(f"I am {context.partitionId()}")
        return context.partitionId(), len(context.getTaskInfos()), told

    runner = MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True)
    assert runner.run(ask) == (0, 2, ["I am 0", "I am 1"])
    assert (runner.sc, runner.get_num_tasks()) == (cluster.sparkContext, 2)


def test_encrypted_session_is_refused_unless_it_says_otherwise(cluster: Any) -> None:
    def answer() -> int:
        return 42

    cluster.conf.set("spark.ssl.enabled", "true")
    try:
        with pytest.raises(JobError, match="TensorFlow are not encrypted: set tensorflow"):
            run(answer, spark=cluster)
        cluster.conf.set("tensorflow.spark.distributor.ignore_ssl", "true")
        assert run(answer, spark=cluster) == 42
    finally:
        cluster.conf.unset("spark.ssl.enabled")
        cluster.conf.unset("tensorflow.spark.distributor.ignore_ssl")


def test_fit_of_keras_fails_with_one_sentence(cluster: Any) -> None:
    def train() -> None:
        import keras
        import numpy as np

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.zeros((8, 2)), np.zeros((8, 1)), verbose=0)

    with pytest.raises(ConfigurationError) as caught:
        MirroredStrategyRunner(num_slots=2, use_gpu=False).run(train)
    assert str(caught.value).startswith("fit of Keras 3 does not train under a MultiWorker")
    assert "\n" not in str(caught.value)


def test_mirrored_strategy_runner_in_local_mode(cluster: Any) -> None:
    def count() -> tuple[int, int]:
        import tensorflow as tf

        return tf.distribute.get_strategy().num_replicas_in_sync, os.getppid()

    runner = MirroredStrategyRunner(num_slots=1, local_mode=True, use_gpu=False)
    assert runner.run(count) == (1, os.getpid())
    with pytest.raises(ConfigurationError, match="num_slots is 2, but this machine has 0 GPUs"):
        MirroredStrategyRunner(num_slots=2, local_mode=True).run(count)
    # Spark gives the driver the GPUs 3 and 7.
    one = MirroredStrategyRunner(num_slots=1, local_mode=True)
    assert one._choose_driver_gpus() == {"CUDA_VISIBLE_DEVICES": "3"}
    with pytest.raises(ValueError, match="num_slots is 3, but Spark's driver has 2 GPUs"):
        MirroredStrategyRunner(num_slots=3, local_mode=True).run(count)


def test_gpus_that_spark_does_not_assign_raise(cluster: Any) -> None:
    runner = MirroredStrategyRunner(num_slots=2, gpu_resource_name="tpu")
    with pytest.raises(JobError, match=r"spark.task.resource.tpu.amount is not set"):
        runner.run(print)


def test_data_frame_is_written_once_and_trained_on(cluster: Any, tmp_path: Path) -> None:
    import phalanx

    frame = cluster.createDataFrame(
        [([float(i % 7), float(i % 3)], float(i % 7 + i % 3)) for i in range(240)],
        "x array<float>, y float",
    )
    data = dataset(frame, features="x", label="y", seed=1, cache_dir=str(tmp_path / "cache"))
    again = dataset(frame, features="x", label="y", seed=1, cache_dir=str(tmp_path / "cache"))
    assert len(data) == 240
    assert again.directory == data.directory

    def make_model() -> Any:
        import keras

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
        return model

    experiment = phalanx.Experiment(model=make_model, train_data=data, eval_data=data)
    config = phalanx.RunConfig(model_dir=str(tmp_path / "model"), epochs=30, global_batch_size=24)
    result = run(experiment, config, workers=1, spark=cluster)
    assert result.step == 300
    assert result.metrics["mae"] < 0.5
    data.delete()
    assert list((tmp_path / "cache").iterdir()) == []
