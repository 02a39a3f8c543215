"""Elastic jobs with real processes: trainers that are killed, and numbers that are changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from phalanx.launch.chaos.network import find_obstacle

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

COUNTING = Path(__file__).parents[2] / "programs/count.py"


def wait_for(text: str, path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"{text} is not in {path}"
        time.sleep(0.05)


def test_the_rest_goes_on_without_a_killed_worker_and_scales(
    phalanx: Phalanx, start_phalanx: Start, tmp_path: Path
) -> None:
    shutil.copy(COUNTING, tmp_path)
    (tmp_path / "die").write_text("worker-0")
    (tmp_path / "hold").touch()
    job = start_phalanx(
        *("run", "--workers", 2, "--min-workers", 1, "--grace", "10s", "--linger", "5s"),
        *("--log-dir", "logs", "count.py", 30, 0),
    )
    membership = tmp_path / "logs/membership.json"
    wait_for('"generation": 2', membership)
    found = json.loads(membership.read_text())
    assert found["members"] == ["chief-0", "worker-1"]
    assert (found["minimum"], found["maximum"], found["wanted"]) == (1, 2, 2)
    refused = phalanx("scale", "logs", "--workers", 3)
    assert refused.returncode == 2
    assert "--workers is 3, but the job was started for 1 to 2" in refused.stderr
    scaled = phalanx("scale", "logs", "--workers", 2)
    assert scaled.returncode == 0, scaled.stderr
    assert "generation 3 has chief-0, worker-0, worker-1" in scaled.stderr
    (tmp_path / "hold").unlink()
    _, text = job.communicate(timeout=60)
    assert job.returncode == 0, text
    assert "worker-0 was killed by SIGKILL" in text
    assert ": the job goes on without it" in text
    assert "phalanx: generation 2: chief-0, worker-1 (as worker-0)" in text
    assert "more trainers can be used: generation 2 saves and ends" in text
    output = (tmp_path / "logs/worker-1.log").read_text().splitlines()
    assert [line for line in output if line.startswith("I am")] == [
        "I am worker-1 of 3",
        "I am worker-0 of 2",
        "I am worker-1 of 3",
    ]
    assert not membership.exists()
    gone = phalanx("scale", "logs", "--workers", 2)
    assert gone.returncode == 2
    assert "there is no elastic job 'logs' here" in gone.stderr


def test_another_trainer_leads_when_the_chief_is_lost(phalanx: Phalanx, tmp_path: Path) -> None:
    shutil.copy(COUNTING, tmp_path)
    (tmp_path / "die").write_text("chief-0")
    done = phalanx("run", "--workers", 2, "--min-workers", 1, "count.py", 30, 0)
    assert done.returncode == 0, done.stderr
    assert "generation 2: worker-0 (as chief-0), worker-1 (as worker-0)" in done.stderr
    # Three trainers have no equal shares of a batch of eight.
    for name in ("saved", "done"):
        (tmp_path / name).unlink()
    (tmp_path / "die").write_text("worker-1")
    done = phalanx("run", "--workers", 3, "--min-workers", 1, "count.py", 30, 8)
    assert done.returncode == 0, done.stderr
    assert "generation 2: chief-0, worker-0\n" in done.stderr


def test_with_too_few_trainers_the_job_fails(phalanx: Phalanx, tmp_path: Path) -> None:
    shutil.copy(COUNTING, tmp_path)
    (tmp_path / "die").write_text("worker-1")
    done = phalanx("run", "--workers", 2, "--max-workers", 2, "count.py", 30, 0)
    assert done.returncode == 1
    assert "2 trainers are left, and at least 3 are needed (--min-workers)" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", 2, "--min-workers", 3], "--workers is 2, --min-workers is 3"),
        (["--workers", 2, "--max-workers", 1], "--max-workers is 1"),
        (["--workers", 2, "--no-chief", "--min-workers", 0], "there is no chief"),
        (["--workers", 2, "--ps", 1, "--min-workers", 0], "parameter servers serve workers"),
        (["--workers", 2, "--min-workers", 1, "--data-workers", 1], "--data-workers cannot be"),
    ],
)
def test_impossible_numbers_are_refused(
    phalanx: Phalanx, options: list[object], message: str
) -> None:
    done = phalanx("run", *options, "--", "true")
    assert done.returncode == 2
    assert message in done.stderr


# Every update is the mean over one global batch, whatever the number of trainers: the weights are
# those of one process only if every example was seen once, in its turn.
TRAINING = """
import os, pathlib, signal, sys, time
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
        data = data.map(make).batch(context.batch_size)
        slot, die = os.environ.get("PHALANX_TASK"), pathlib.Path("die")
        def disturb(x, y):
            time.sleep(0.02)
            if die.exists() and die.read_text() == slot and pathlib.Path("started").exists():
                die.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return x
        if slot:
            data = data.map(lambda x, y: (
                tf.ensure_shape(tf.py_function(disturb, [x, y], tf.float32), [None, 3]), y))
        return data

class Mark(phalanx.hooks.Hook):
    def on_save(self, session, path):
        if session.step >= 40:
            pathlib.Path("started").touch()

    def end(self, session):
        session.pull()
        with open("weights", "w") as file:
            file.write(repr([float(v) for w in session.model.weights for v in w.numpy().ravel()]))

config = phalanx.RunConfig.parse(epochs=4, global_batch_size=24, save_steps=20, seed=3)
phalanx.run(Line(), config, hooks=[Mark()])
"""


def train(phalanx: Phalanx, tmp_path: Path, name: str, *options: object) -> tuple[str, list[float]]:
    shape = options[: options.index("--")] if "--" in options else options
    flags = options[options.index("--") + 1 :] if "--" in options else ()
    done = phalanx(*("run", *shape, "line.py", "--model-dir", f"runs/{name}", *flags), timeout=550)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    weights: list[float] = json.loads((tmp_path / "weights").read_text())
    return done.stderr, weights


@pytest.mark.slow
@pytest.mark.parametrize("slot", ["worker-0", "chief-0"])
def test_a_smaller_generation_sees_each_example_once(
    phalanx: Phalanx, tmp_path: Path, slot: str
) -> None:
    (tmp_path / "line.py").write_text(TRAINING)
    _, expected = train(phalanx, tmp_path, "alone")
    (tmp_path / "started").unlink()
    (tmp_path / "die").write_text(slot)
    text, found = train(phalanx, tmp_path, "elastic", "--workers", 2, "--min-workers", 1)
    assert "generation 2: " in text
    assert not (tmp_path / "die").exists()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_phalanx_scale_keeps_the_position_in_the_data(
    phalanx: Phalanx, start_phalanx: Start, tmp_path: Path
) -> None:
    (tmp_path / "line.py").write_text(TRAINING)
    _, expected = train(phalanx, tmp_path, "alone")
    (tmp_path / "started").unlink()
    job = start_phalanx(
        *("run", "--workers", 1, "--min-workers", 0, "--max-workers", 2, "--log-dir", "logs"),
        *("line.py", "--model-dir", "runs/scaled"),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "started").exists():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    scaled = phalanx("scale", "logs", "--workers", 2)
    assert scaled.returncode == 0, scaled.stderr
    assert "generation 2 has chief-0, worker-0, worker-1" in scaled.stderr
    _, text = job.communicate(timeout=300)
    assert job.returncode == 0, text
    assert "restored step" in text or "restored step" in (tmp_path / "logs/chief-0.log").read_text()
    np.testing.assert_allclose(
        json.loads((tmp_path / "weights").read_text()), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_killed_worker_of_synchronous_ps_is_replaced_or_left_out(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    """Without backups its gradient is lost: all go back to the last checkpoint, and to its data."""
    (tmp_path / "line.py").write_text(TRAINING)
    _, expected = train(phalanx, tmp_path, "alone")
    for name, options, note in (
        ("restarted", ("--restarts", 1), "worker-0 was killed by SIGKILL"),
        ("smaller", ("--min-workers", 1), "generation 2: chief-0, worker-1 (as worker-0)"),
    ):
        (tmp_path / "started").unlink()
        (tmp_path / "die").write_text("worker-0")
        text, found = train(
            phalanx, tmp_path, name, "--workers", 2, "--ps", 1, *options, "--", "--sync"
        )
        assert note in text
        assert not (tmp_path / "die").exists()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


# Each use of an example adds 1 to its own weight: the loss is minus the mean of these weights, and
# the learning rate is the number of examples in a trainer's batch.
COUNTED = """
import os, pathlib, signal, time
import keras, tensorflow as tf
import phalanx

class Count(phalanx.Experiment):
    def model(self, context):
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((540,)), layer])
        optimizer = keras.optimizers.SGD(float(context.batch_size))
        model.compile(optimizer, loss=lambda y, p: -p[:, 0])
        return model

    def train_data(self, context):
        data = tf.data.Dataset.range(540).shard(context.num_shards, context.shard)
        data = data.batch(context.batch_size)
        slot, die = os.environ.get("PHALANX_TASK"), pathlib.Path("die")
        def disturb(numbers):
            time.sleep(0.1)
            if die.exists() and die.read_text() == slot and pathlib.Path("started").exists():
                die.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return numbers
        data = data.map(lambda n: tf.ensure_shape(
            tf.py_function(disturb, [n], tf.int64), [None])).prefetch(1)
        return data.map(lambda n: (tf.one_hot(n, 540), tf.zeros_like(n)))

class Mark(phalanx.hooks.Hook):
    def after_step(self, session):
        if session.step >= 20:
            pathlib.Path("started").touch()

    def end(self, session):
        session.pull()
        counts = session.model.weights[0].numpy().ravel()
        with open("weights", "w") as file:
            file.write(repr([float(count) for count in counts]))

config = phalanx.RunConfig.parse(
    epochs=3, global_batch_size=18, steps_per_call=2, seed=3, save_steps=15)
phalanx.run(Count(), config, hooks=[Mark()])
"""


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["worker-0", "chief-0"])
def test_asynchronously_each_example_is_applied_once_whatever_dies(
    phalanx: Phalanx, tmp_path: Path, lost: str
) -> None:
    (tmp_path / "line.py").write_text(COUNTED)
    (tmp_path / "die").write_text(lost)
    train(phalanx, tmp_path, "counted", "--workers", 2, "--ps", 2, "--restarts", 1)
    counts = np.array(json.loads((tmp_path / "weights").read_text()))
    log = next(tmp_path.glob("phalanx-logs/*/chief-0.log")).read_text()
    assert not (tmp_path / "die").exists()
    if lost == "worker-0":
        assert "worker-0 is back, and reads on after" in log
    else:
        assert "restored step" in log
    np.testing.assert_allclose(counts, 3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(bool(find_obstacle()), reason=str(find_obstacle()))
def test_an_update_whose_answer_is_lost_is_applied_once(phalanx: Phalanx, tmp_path: Path) -> None:
    passes = 30
    (tmp_path / "line.py").write_text(COUNTED.replace("epochs=3", f"epochs={passes}"))
    done = phalanx(
        *("chaos", "--workers", 2, "--ps", 2, "--every", "2s", "--log-dir", "logs"),
        *("--scenario", "worker-reply-lost", "line.py", "--model-dir", "runs/counted"),
        timeout=550,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " is back, and reads on after" in (tmp_path / "logs/chief-0.log").read_text()
    counts = np.array(json.loads((tmp_path / "weights").read_text()))
    np.testing.assert_allclose(counts, passes, atol=1e-2)
