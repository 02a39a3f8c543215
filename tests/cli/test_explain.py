"""`phalanx explain`."""

import json
from pathlib import Path

import pytest
from tests.cli.in_process import invoke

PROGRAM = """
import argparse
import keras, numpy as np, tensorflow as tf, phalanx

class Clicks(phalanx.Experiment):
    def model(self):
        index = keras.Input((26,), dtype="int64")
        rows = phalanx.layers.Embedding(400_000_000, 32, combiner="sum", name="table")(index)
        model = keras.Model(index, keras.layers.Dense(1)(rows))
        model.compile("adam", "mse")
        return model
    def train_data(self, context):
        x = np.arange(2600).reshape(100, 26) % 50
        return tf.data.Dataset.from_tensor_slices((x, np.ones((100, 1)))).batch(context.batch_size)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    phalanx.run(Clicks(), phalanx.RunConfig.from_flags(parser.parse_args(), global_batch_size=90))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "train.py"
    path.write_text(PROGRAM)
    return path


def test_table_that_no_host_holds_is_explained_without_a_cluster(program: Path) -> None:
    done = invoke("explain", program, "--ps", 4, "--workers", 8, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tasks = {task["task"]: task for task in found["tasks"]}
    assert len(tasks) == 13
    rows = 400_000_000 * 32 * 4
    for name in ("ps-0", "ps-3"):
        assert tasks[name]["weight_bytes"] == pytest.approx(rows / 4, rel=1e-6)
        assert tasks[name]["slot_bytes"] == pytest.approx(2 * rows / 4, rel=1e-6)
        # A save in the background keeps only the rows that change meanwhile.
        assert tasks[name]["memory_bytes"] == pytest.approx(3 * rows / 4, rel=0.03)
    assert tasks["chief-0"]["memory_bytes"] < 1e9
    assert found["checkpoint_bytes"] == pytest.approx(3 * rows, rel=1e-6)
    assert found["looked_up"] == {"table/embeddings": 50}
    # The dense weights, and the rows with their indices, in both directions.
    moved = 33 * 4 + 50 * (32 * 4 + 8)
    assert tasks["worker-0"]["sent_bytes"] == tasks["worker-0"]["received_bytes"] == moved
    assert sum(tasks[f"ps-{i}"]["sent_bytes"] for i in range(4)) == pytest.approx(
        9 * moved, rel=0.01
    )


def test_run_that_does_not_fit_is_refused_with_the_figure(program: Path) -> None:
    shape = ["--ps", 4, "--workers", 1]
    done = invoke("explain", program, *shape, "--memory", "ps=16G", "--memory", "2G")
    assert done.returncode == 2
    assert "ps-0 needs 39.3 GB of memory, but has 17.2 GB" in done.stderr
    assert "start 10 parameter servers" in done.stderr
    assert "trains asynchronously on parameter servers" in done.stdout
    fits = ["--ps", 10, "--workers", 1, "--memory", "ps=16G", "--memory", "2G"]
    assert invoke("explain", program, *fits).returncode == 0
    alone = invoke("explain", program, "--memory", "64G")
    assert alone.returncode == 2
    assert "chief-0 needs" in alone.stderr and "on parameter servers (--ps)" in alone.stderr


def test_settings_that_no_run_accepts_are_errors(program: Path) -> None:
    for arguments, message in (
        (["--ps", 1], "no worker beside the chief"),
        (["--workers", 6], "global_batch_size is 90"),
        (["--memory", "much"], "'much' is not a size"),
        (["--ps", "many"], "'many' is not a valid integer"),
        (["--", "--async"], "mode is async, but this is one process"),
    ):
        done = invoke("explain", program, *arguments)
        assert done.returncode == 2, arguments
        assert message in done.stderr, arguments
    done = invoke("explain", "missing.py")
    assert done.returncode == 2
    assert "there is no program missing.py" in done.stderr
