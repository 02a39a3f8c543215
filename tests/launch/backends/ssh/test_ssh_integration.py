"""`phalanx launch ssh` with a real sshd: to the end, through a failure, and away again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launch.elastic_job import run_elastic_job
from tests.servers import sshd
from tests.servers.processes import find_tasks, wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sshd.why_not() is not None, reason=str(sshd.why_not())),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Server]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def test_job_succeeds_after_a_killed_worker_restarts(
    launching: Phalanx, tmp_path: Path, server: sshd.Server
) -> None:
    (tmp_path / "hold").touch()
    shape = ["--workers", 2, "--ps", 1, "--restarts", 1]
    done = launching("launch", "ssh", *server.options(3), *shape, "train.py", 3, "{role}")
    assert done.returncode == 0, done.stderr
    assert "train is submitted: 1 chief, 2 workers, 1 ps" in done.stderr
    wait_for(lambda: len(find_tasks("train.py")) == 4)
    wait_for(lambda: "step 2" in launching("logs", "train", "worker-1").stdout)
    os.kill(find_tasks("train.py")["worker-1"][0], signal.SIGKILL)
    wait_for(lambda: "1 restart" in launching("status", "train").stdout)
    (tmp_path / "hold").unlink()
    ended = launching("logs", "-f", "train")
    assert ended.returncode == 0, ended.stderr
    assert "train succeeded" in ended.stderr
    assert ended.stdout.count("worker-1 | I am worker 1 worker\n") == 2
    status = json.loads(launching("status", "--json", "train").stdout)
    assert {each["task"]: each["state"] for each in status["tasks"]} == {
        "chief-0": "done",
        "worker-0": "done",
        "worker-1": "done",
        "ps-0": "ended",
    }
    assert launching("status").stdout == "job    backend  state\ntrain  ssh      succeeded\n"
    assert not find_tasks("train.py")


def test_cancelled_tasks_save_and_the_name_is_free_again(
    launching: Phalanx, server: sshd.Server
) -> None:
    command = ["launch", "ssh", *server.options(), "--workers", 1, "--ps", 1, "train.py", 600]
    assert launching(*command).returncode == 0
    wait_for(lambda: "step" in launching("logs", "train", "chief-0").stdout)
    taken = launching(*command)
    assert taken.returncode == 2
    assert "there is already a job 'train' (ssh)" in taken.stderr
    cancelled = launching("cancel", "train")
    assert cancelled.returncode == 0, cancelled.stderr
    assert launching("logs", "train", "chief-0").stdout.endswith("saving\nsaved\n")
    assert not find_tasks("train.py")
    status = launching("status", "train")
    assert status.returncode == 1
    assert status.stdout.startswith("train: failed: cancelled\n")
    assert "its record is deleted" in launching("cancel", "train").stderr
    assert "there is no job 'train': none was launched" in launching("status", "train").stderr


def test_killed_supervisor_leaves_nothing_behind(
    launching: Phalanx, tmp_path: Path, server: sshd.Server
) -> None:
    launching("launch", "ssh", *server.options(), "--workers", 1, "train.py", 600)
    wait_for(lambda: len(find_tasks("train.py")) == 2)
    os.kill(int((tmp_path / "state/phalanx/jobs/train/lock").read_text()), signal.SIGKILL)
    wait_for(lambda: not find_tasks("train.py"))
    assert "its supervisor was killed" in launching("status", "train").stdout


def test_task_that_fails_after_all_restarts_fails_the_job(
    launching: Phalanx, server: sshd.Server
) -> None:
    done = launching("launch", "ssh", *server.options(), "--follow", "train.py", "many")
    assert done.returncode == 1
    assert "chief-0 | ValueError: invalid literal" in done.stdout
    assert "train failed: chief-0 failed with exit code 1" in done.stderr


def test_job_over_its_time_limit_is_ended(launching: Phalanx, server: sshd.Server) -> None:
    limit = ["--time-limit", "2s", "--follow"]
    done = launching("launch", "ssh", *server.options(), *limit, "train.py", 600)
    assert done.returncode == 1
    assert "train failed: over its time limit of 2 s" in done.stderr


def test_only_named_files_are_copied(
    launching: Phalanx, tmp_path: Path, server: sshd.Server
) -> None:
    (tmp_path / "secret").touch()
    there = tmp_path / "there/deep"
    where = ["--copy", "train.py", "--directory", there]
    done = launching("launch", "ssh", *server.options(), *where, "--follow", "train.py", 1)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in there.iterdir()] == ["train.py"]


def test_unreachable_host_is_named_and_nothing_is_started(
    launching: Phalanx, tmp_path: Path, server: sshd.Server
) -> None:
    hosts = [*server.options(), "--host", "ssh://127.0.0.1:1"]
    done = launching("launch", "ssh", *hosts, "--workers", 1, "train.py", 1)
    assert done.returncode == 2
    assert "nothing was started: ssh://127.0.0.1:1 cannot be reached" in done.stderr
    assert "Connection refused" in done.stderr
    assert not (tmp_path / "state").exists()


def test_rejected_key_is_reported(launching: Phalanx, server: sshd.Server) -> None:
    options = ["--ssh-option=IdentityFile=/dev/null", *server.options()[1:]]
    done = launching("launch", "ssh", *options, "train.py", 1)
    assert done.returncode == 2
    assert "Permission denied (publickey" in done.stderr


# Every update is the mean over one global batch, whatever the number of trainers.
TRAINING = """
import pathlib, time
import keras, tensorflow as tf
import phalanx

class Line(phalanx.Experiment):
    def model(self):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
        return model

    def train_data(self, context):
        def make(number):
            x = tf.math.sin(tf.cast(number, tf.float32) * tf.constant([0.7, 1.3, 2.9]))
            return x, tf.reduce_sum(x, keepdims=True)
        data = tf.data.Dataset.range(2400).shard(context.num_shards, context.shard)
        return data.map(make).batch(context.batch_size)

class Mark(phalanx.hooks.Hook):
    def after_step(self, session):
        # The test decides when the run ends.
        while session.step == 300 and pathlib.Path("hold").exists():
            time.sleep(0.1)

    def on_save(self, session, path):
        pathlib.Path("saved").write_text(str(session.step))

    def end(self, session):
        session.pull()
        with open("weights", "w") as file:
            file.write(repr([float(v) for w in session.model.weights for v in w.numpy().ravel()]))

config = phalanx.RunConfig.parse(epochs=4, global_batch_size=24, save_steps=20, seed=3)
phalanx.run(Line(), config, hooks=[Mark()])
"""


def test_elastic_training_uses_each_example_once(
    launching: Phalanx, tmp_path: Path, server: sshd.Server
) -> None:
    pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")
    (tmp_path / "line.py").write_text(TRAINING)
    done = launching("run", "line.py", "--model-dir", "runs/alone")
    assert done.returncode == 0, done.stderr
    expected = json.loads((tmp_path / "weights").read_text())
    (tmp_path / "saved").unlink()
    (tmp_path / "hold").touch()
    shape = ["--workers", 2, "--min-workers", 1, "--cpus", 1, "--python", sys.executable]
    done = launching(
        *("launch", "ssh", *server.options(3), *shape, "line.py", "--model-dir", "runs/elastic")
    )
    assert done.returncode == 0, done.stderr
    wait_for((tmp_path / "saved").exists)
    os.kill(find_tasks("line.py")["worker-0"][0], signal.SIGKILL)
    wait_for(lambda: "restored step" in launching("logs", "line", "chief-0").stdout)
    (tmp_path / "hold").unlink()
    ended = launching("logs", "-f", "line", timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "weights").read_text())
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_tensorflow_trains_with_a_killed_worker(
    launching: Phalanx, server: sshd.Server, train_with_tensorflow: Callable[..., None]
) -> None:
    train_with_tensorflow(launching, "ssh", *server.options(3), "--cpus", 1)


def test_elastic_job_goes_on_without_a_killed_worker_and_scales(
    launching: Phalanx, tmp_path: Path, server: sshd.Server
) -> None:
    run_elastic_job(launching, tmp_path, "ssh", *server.options(3), "--python", sys.executable)
