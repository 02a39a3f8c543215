"""A table that no task holds as a whole: 20 million rows of 32, 7.7 GB with Adam, on 2 ps.

The chief and the worker must stay under 1.5 GB. All tasks are killed after two checkpoints; 3 ps
and one process restore the last one, and must have its rows and its AUC. Takes 8 GB of memory, 24
GB of disk, and some minutes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from clusters import figure, free_ports, run_cluster

ROWS, WIDTH = int(os.environ.get("BENCH_ROWS", "20_000_000")), 32
IDS = 2000
CHUNK_ROWS = 2**19
SAVE_STEPS = 100
WAIT_SECONDS = 3000.0


def make_model() -> Any:
    import keras

    import phalanx

    index = keras.Input((), dtype="int64")
    rows = phalanx.layers.Embedding(ROWS, WIDTH, name="table")(index)
    model = keras.Model(index, keras.layers.Dense(1, activation="sigmoid")(rows))
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["AUC"])
    return model


def list_ids() -> Any:
    """Return indices that are spread over the whole table."""
    import numpy as np

    return np.arange(IDS, dtype=np.int64) * (ROWS // IDS)


def make_data(context: Any) -> Any:
    """Return pairs of an index and a label that only the row of the index can know."""
    import numpy as np
    import tensorflow as tf

    labels = np.random.default_rng(0).integers(0, 2, (IDS, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((list_ids(), labels))
    data = data.shard(context.num_shards, context.shard)
    return data.shuffle(IDS, seed=1).batch(context.batch_size)


def train() -> None:
    """Run as one task of the cluster."""
    import phalanx

    config = phalanx.RunConfig(
        model_dir=sys.argv[2], train_steps=int(sys.argv[3]), global_batch_size=100, seed=1,
        save_steps=SAVE_STEPS, save_in_background=False, wait_seconds=WAIT_SECONDS,
    )  # fmt: skip
    experiment = phalanx.Experiment(model=make_model, train_data=make_data, eval_data=make_data)
    started = time.perf_counter()
    result = phalanx.run(experiment, config)
    if result.metrics:
        name = next(name for name in result.metrics if "auc" in name.lower())
        print(f"AUC {result.metrics[name]} STEP {result.step}")
        print(f"SECONDS {time.perf_counter() - started:.1f}")
        print(f"PEAK {_peak_bytes(os.getpid())}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        peaks = _train_and_kill(directory)
        import tensorflow as tf

        saved = str(tf.train.latest_checkpoint(directory))
        step = int(saved.rpartition("-")[2])
        print(f"peak of each task: { {k: f'{v / 1e9:.2f} GB' for k, v in peaks.items()} }")
        print(f"killed after {saved}: {_size(saved) / 1e9:.2f} GB", flush=True)
        program, flags = Path(__file__), ("train", directory, str(step + 1))
        shape = {"chief": 1, "worker": 1, "ps": 3}
        output = run_cluster(program, shape, *flags, seconds=WAIT_SECONDS)
        on_three, peak = figure(output, "AUC"), figure(output, "PEAK")
        print(f"3 ps: AUC {on_three:.4f}, chief {peak / 1e9:.2f} GB", flush=True)
        different = _count_different_rows(saved, f"{directory}/model.ckpt-{step + 1}")
        alone = _evaluate(f"{directory}/model.ckpt-{step + 1}")
        print(f"one process, by slices: AUC {alone:.4f}", flush=True)
        largest = max(v for k, v in peaks.items() if not k.startswith("ps"))
        print(f"RESULT large_table_memory_outside_ps {largest / 1e9:.2f} GB goal <= 1.5")
        print(f"RESULT large_table_rows_that_differ {different} rows goal <= 0")
        print(f"RESULT large_table_auc_of_one_process {alone / on_three:.4f} ratio goal >= 0.999")


def _train_and_kill(directory: str) -> dict[str, int]:
    """Train on 2 ps until two checkpoints are complete; kill everything, and return the peaks."""
    tasks = ["chief-0", "worker-0", "ps-0", "ps-1"]
    cluster: dict[str, list[str]] = {}
    for task, port in zip(tasks, free_ports(len(tasks)), strict=True):
        cluster.setdefault(task.partition("-")[0], []).append(f"127.0.0.1:{port}")
    running: dict[str, subprocess.Popen[bytes]] = {}
    peaks: dict[str, int] = {}
    listed = Path(directory, "checkpoint")
    try:
        for task in tasks:
            role, _, index = task.partition("-")
            config = {"cluster": cluster, "task": {"type": role, "index": int(index)}}
            command = [sys.executable, __file__, "train", directory, "100000000"]
            environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
            with Path(directory, f"{task}.log").open("wb") as log:
                running[task] = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
        deadline = time.monotonic() + WAIT_SECONDS
        while not listed.exists() or listed.read_text().count("all_model_checkpoint_paths") < 2:
            if time.monotonic() > deadline or any(p.poll() is not None for p in running.values()):
                raise SystemExit(Path(directory, "chief-0.log").read_text()[-3000:])
            time.sleep(1)
            peaks |= {task: _peak_bytes(process.pid) for task, process in running.items()}
    finally:
        for process in running.values():
            process.send_signal(signal.SIGKILL)
        for process in running.values():
            process.wait()
    return peaks


def _peak_bytes(pid: int) -> int:
    """Return the largest amount of memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = status.partition("VmHWM:")[2].split()
    return int(found[0]) * 1024 if found else 0


def _size(prefix: str) -> int:
    files = Path(prefix).parent.glob(f"{Path(prefix).name}.*")
    return sum(path.stat().st_size for path in files)


def _read_rows(path: str, key: str, start: int, length: int) -> Any:
    import tensorflow as tf

    spec = f"{ROWS} {WIDTH} {start},{length}:0,{WIDTH}"
    (rows,) = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=[key], shape_and_slices=[spec], dtypes=[tf.float32]
    )
    return rows.numpy()


def _find_tables(path: str) -> list[str]:
    import tensorflow as tf

    return [name for name, shape in tf.train.list_variables(path) if shape == [ROWS, WIDTH]]


def _count_different_rows(first: str, second: str) -> int:
    """Compare the rows and slots that the step between two checkpoints has not updated."""
    import numpy as np

    trained = np.zeros(ROWS, bool)
    trained[list_ids()] = True
    different = 0
    tables = _find_tables(first)
    assert len(tables) == 3 and tables == _find_tables(second)
    for key in tables:
        for start in range(0, ROWS, CHUNK_ROWS):
            length = min(CHUNK_ROWS, ROWS - start)
            old, new = (_read_rows(path, key, start, length) for path in (first, second))
            differs = (old != new).any(axis=1) & ~trained[start : start + length]
            different += int(differs.sum())
    return different


def _evaluate(path: str) -> float:
    """Return the AUC of one process, which reads only the slices of the rows that it needs."""
    import keras
    import numpy as np
    import tensorflow as tf

    reader = tf.train.load_checkpoint(path)
    key = next(k for k in _find_tables(path) if "_variables/" not in k.partition("/")[2][:11])
    dense = {
        shape[0] == WIDTH: reader.get_tensor(name)
        for name, shape in tf.train.list_variables(path)
        if "_trainable_variables" in name and shape in ([WIDTH, 1], [1])
    }
    ids, rows = list_ids(), []
    for start in range(0, ROWS, CHUNK_ROWS):
        chunk = _read_rows(path, key, start, min(CHUNK_ROWS, ROWS - start))
        rows.append(chunk[ids[(ids >= start) & (ids < start + CHUNK_ROWS)] - start])
    labels = np.random.default_rng(0).integers(0, 2, (IDS, 1)).astype("float32")
    predicted = tf.sigmoid(np.concatenate(rows) @ dense[True] + dense[False])
    metric = keras.metrics.AUC()
    metric.update_state(labels, predicted)
    return float(metric.result())


if __name__ == "__main__":
    train() if sys.argv[1:2] == ["train"] else main()
