"""Records and checkpoints on a real HDFS: a NameNode and a DataNode."""

import multiprocessing
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.servers import hdfs

from phalanx.errors import DataError
from phalanx.records import (
    count_records,
    expand,
    read_arrays,
    read_records,
    write_examples,
)
from phalanx.records.storage import exists, file_size, open_atomic, open_input, read_range

pytest.importorskip("hdfs_native", reason="hdfs-native not installed: pip install 'phalanx[hdfs]'")


def test_unreachable_namenode_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(DataError, match=f"no NameNode answers at 127.0.0.1:{port}"):
        expand(f"hdfs://127.0.0.1:{port}/data/*.tfrecord")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    why = hdfs.why_not()
    if why:
        pytest.skip(why)
    with hdfs.running_hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.mark.slow
def test_files_are_written_atomically_replaced_and_read_in_ranges(url: str) -> None:
    path = f"{url}/parts/file"
    for data in (b"abc" * 1_000_000, b"0123456789"):
        output = open_atomic(path)
        output.file.write(data)
        output.commit()
        assert file_size(path) == len(data)
    assert read_range(path, 2, 5) == b"234"
    assert read_range(path, 8, 100) == b"89"
    with open_input(path) as file:
        assert file.read(2) == b"01"
        assert file.seek(5) == 5
        assert file.read() == b"56789"
    output = open_atomic(path)
    output.file.write(b"never")
    output.discard()
    assert expand(f"{url}/parts/*") == [path]
    assert read_range(path, 0, 4) == b"0123"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain.tfrecord", "packed.tfrecord.gz"])
def test_records_round_trip(url: str, name: str) -> None:
    path = f"{url}/records/{name}"
    columns = {"x": np.arange(6000, dtype="float32").reshape(3000, 2), "y": np.arange(3000)}
    write_examples(path, columns)
    assert count_records(path) == 3000
    back = read_arrays(path)
    assert np.array_equal(back["x"], columns["x"])
    assert np.array_equal(back["y"], columns["y"])
    assert len(list(read_records(path))) == 3000


@pytest.mark.slow
def test_missing_files_are_errors(url: str) -> None:
    with pytest.raises(DataError, match=f"there is no file {url}/nothing"):
        open_input(f"{url}/nothing")
    with pytest.raises(DataError, match="no file matches"):
        expand(f"{url}/nothing/*.tfrecord")
    assert not exists(f"{url}/nothing")


@pytest.mark.slow
def test_forked_process_cannot_use_hdfs(url: str) -> None:
    exists(url)
    subprocess.run(["true"], preexec_fn=lambda: None, check=True, timeout=60)
    with (
        multiprocessing.get_context("fork").Pool(1) as pool,
        pytest.raises(DataError, match="Start the process by 'spawn'"),
    ):
        pool.apply_async(exists, [url]).get(60)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(exists, [url]).get(60)
    assert exists(url)


@pytest.mark.slow
def test_experiment_reads_data_and_saves_its_model_on_hdfs(url: str, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    import tensorflow as tf

    import phalanx
    from phalanx.data import Pipeline
    from phalanx.train.model_dir.remote import Mirror

    x = np.random.default_rng(1).normal(size=(96, 4)).astype("float32")
    write_examples(f"{url}/train/part.tfrecord", {"x": x, "y": x.sum(axis=1)})

    def make_model() -> object:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def read(context: phalanx.Context) -> object:
        pipeline = Pipeline.from_records(f"{url}/train/*.tfrecord", seed=1)
        pipeline = pipeline.map(lambda batch: (batch["x"], batch["y"]))
        return pipeline.dataset(context.batch_size, share=context, epochs=1)

    experiment = phalanx.Experiment(model=make_model, train_data=read)
    model_dir = f"{url}/models/sum"
    for steps in (3, 5):
        config = phalanx.RunConfig(model_dir=model_dir, train_steps=steps)
        result = phalanx.run(experiment, config)
        assert (result.step, result.model_dir) == (steps, model_dir)
        assert result.checkpoint == f"{model_dir}/model.ckpt-{steps}"
        assert exists(f"{result.checkpoint}.index")
    # The second run resumed from the checkpoint of the first, which was not deleted.
    Mirror(model_dir, str(tmp_path)).pull()
    kept = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
    assert [path.rpartition("-")[2] for path in kept] == ["0", "3", "5"]
