"""`phalanx evaluate`, `export`, `predict` and `serve` on the model_dir of an Estimator."""

import base64
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.records.codec.fallback import frame, message_classes

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
WIDE_DEEP = Path(__file__).parents[3] / "examples/tf1/wide_deep.py"

PLAIN = """
import numpy as np
import tensorflow as tf

tf.app.flags.DEFINE_string("model_dir", "model", "")

def model_fn(features, labels, mode):
    y = tf.layers.dense(features, 1, use_bias=False, kernel_initializer=tf.ones_initializer())
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": y})
    loss = tf.losses.mean_squared_error(labels, y)
    step = tf.train.GradientDescentOptimizer(0.0).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

def main(_):
    x = np.ones((8, 2), np.float32)
    data = tf.estimator.inputs.numpy_input_fn(x, x[:, :1], batch_size=4, shuffle=False)
    estimator = tf.estimator.Estimator(model_fn, tf.app.flags.FLAGS.model_dir)
    estimator.train(data, steps=2)
    print("loss %.1f" % estimator.evaluate(data)["loss"])

tf.app.run(main)
"""


def train(program: Path, *flags: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "phalanx.compat.tf1", str(program), *flags]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_plain_estimator_is_exported_and_predicts(phalanx: Phalanx, tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(PLAIN)
    train(program, cwd=tmp_path)
    exported = phalanx("export", "--tf1", program, "--out", "models/plain")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout == "models/plain/1\n"
    (tmp_path / "rows.jsonl").write_text("[1, 2]\n[3, 4]\n")
    done = phalanx("predict", "models/plain", "rows.jsonl")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"y": [3.0]}, {"y": [7.0]}]


@pytest.mark.slow
def test_commands_on_a_program_with_exporters(phalanx: Phalanx, tmp_path: Path) -> None:
    train(WIDE_DEEP, "--model_dir=census", "--train_steps=220", cwd=tmp_path)
    given = ["--tf1", WIDE_DEEP, "--model-dir", "census"]
    done = phalanx("evaluate", *given, "--once", "--checkpoint", "200")
    assert done.returncode == 0, done.stderr
    [metrics] = map(json.loads, done.stdout.splitlines())
    assert metrics["step"] == 200
    assert metrics["accuracy"] > 0.7
    # The run is over, and each of its checkpoints but the first was evaluated while it trained.
    done = phalanx("evaluate", *given)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == [0]
    (tmp_path / "people.tfrecord").write_bytes(frame([make_person()]))
    best = ["--checkpoint", "best", "--metric", "accuracy", "people.tfrecord"]
    by_program = phalanx("predict", *given, *best)
    assert by_program.returncode == 0, by_program.stderr
    by_model_dir = phalanx("predict", "census", "people.tfrecord")
    for done in (by_program, by_model_dir):
        [prediction] = map(json.loads, done.stdout.splitlines())
        assert prediction["classes"] == ["0", "1"]
        assert prediction["scores"][1] > 0.5
    example = base64.b64encode(make_person()).decode()
    with serve(tmp_path / "census") as address:
        body = json.dumps({"instances": [{"b64": example}]}).encode()
        with urllib.request.urlopen(f"{address}:predict", body, timeout=120) as answer:
            [served] = json.load(answer)["predictions"]
    assert served["scores"] == pytest.approx(prediction["scores"], abs=1e-5)


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    """Serve a model_dir as its user does, and give its address."""
    command = [sys.executable, "-m", "phalanx", "serve", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+/\S+?):", line)
        assert found, line
        yield found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


def make_person() -> bytes:
    example = message_classes()[0]()
    feature = example.features.feature
    for name, text in (("education", "master"), ("work", "public"), ("occupation", "job3")):
        feature[name].bytes_list.value.append(text.encode())
    for name, number in (("age", 40.0), ("hours", 45.0)):
        feature[name].float_list.value.append(number)
    serialized: bytes = example.SerializeToString()
    return serialized


@pytest.mark.slow
def test_programs_that_cannot_be_used_are_refused(phalanx: Phalanx, tmp_path: Path) -> None:
    for content, error in (
        ("print(1)", "trains no estimator"),
        ("import sys; sys.exit('--data is missing')", "ended with '--data is missing' before it"),
        (PLAIN, "there is no checkpoint in model"),
    ):
        (tmp_path / "program.py").write_text(content)
        done = phalanx("evaluate", "--tf1", "program.py", "--once")
        assert done.returncode == 2
        assert error in done.stderr
        assert done.stdout == ""
