"""`python -m phalanx.compat.tf1`, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "programs/tf1"


def run_program(*arguments: str, cwd: Path = PROGRAMS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "phalanx.compat.tf1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_program_sees_tensorflow_1_and_errors_name_what_is_missing() -> None:
    done = run_program("imports.py", "--data_dir=/data", "--unknown_flag=1")
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        "version 1.15.0",
        "without [] None",
        "graph True False",
        "flag /data logs",
        "module tensorflow.contrib.learn.python.learn.learn_runner "
        "tensorflow.python.estimator.estimator",
    ], done.stderr
    assert lines[5:] == [
        "ConfigurationError: tf.contrib.crf.crf_log_likelihood is not provided under --tf1: write "
        "the layer yourself: TensorFlow 2 has none",
        "ConfigurationError: tf.contrib.tpu.TPUEstimator is not provided under --tf1: "
        "use tf.estimator.Estimator",
        "AttributeError: tf.mul is not provided under --tf1: use tf.multiply",
        "AttributeError: tf.GradientTapes is not provided under --tf1, and TensorFlow 2.21 has no "
        "such name: see docs/guide/tf1.md for what there is",
        "AttributeError: tf.summary_v2 is not provided under --tf1, and TensorFlow 2.21 has no "
        "such name: see docs/guide/tf1.md for what there is",
        "ImportError: tf.scalar_summary is not provided under --tf1: use tf.summary.scalar",
        "session 2",
    ]
    assert done.returncode == 1
    assert "eager execution, which --tf1 turns off: run it without --tf1" in done.stderr


def test_module_of_a_program_runs_with_m(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model.py").write_text("import tensorflow as tf\nVERSION = tf.__version__\n")
    (package / "task.py").write_text(
        "import sys\nfrom . import model\nprint(model.VERSION, sys.argv[1:])\n"
    )
    done = run_program("-m", "trainer.task", "--x", cwd=tmp_path)
    assert done.stdout == "1.15.0 ['--x']\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["gone.py"], "phalanx: there is no file gone.py"),
        (["-m"], "phalanx: there is no module after -m: name the module to run"),
        ([], "usage: python -m phalanx.compat.tf1 PROGRAM"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], error: str) -> None:
    done = run_program(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(error)


def test_worker_that_is_ready_after_the_last_step_of_synchronous_training_ends_well(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nimport tensorflow as tf\n"
        "tokens = tf.FIFOQueue(1, tf.int32, shared_name=sys.argv[1])\n"
        "with tf.Session() as session:\n"
        "    session.run(tokens.close())\n"
        "    session.run(tokens.dequeue())\n"
    )
    late = run_program("train.py", "sync_token_q", cwd=tmp_path)
    assert late.returncode == 0, late.stderr
    assert "phalanx: training is over: the chief has closed the queue of tokens" in late.stderr
    other = run_program("train.py", "another", cwd=tmp_path)
    assert other.returncode == 1
    assert "OutOfRangeError" in other.stderr


def test_smaller_parts_of_tensorflow_1_work(tmp_path: Path) -> None:
    done = run_program("names.py", str(tmp_path / "keras"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *["keras tf_keras True"] * 2,
        "model_to_estimator got a builtins.object: only a model of Keras 2 works in a graph. Under "
        "--tf1, build it with tf.keras; for a Keras 3 model use phalanx.Experiment",
        "'dense' is a layer of Keras 3, which does not work in the graphs of TensorFlow 1: build "
        "it with tf.keras or `import keras`, which are Keras 2 here, or run the program without "
        "--tf1",
        "moved /job:worker/device:CPU:1 True [] ['weight']",
        "data [ 7  9 11] [13 15 17]",
        "layers (2, 64) 1",
        "mnist (5, 784) (5, 10) 1000",
    ]


def test_networks_of_the_time_build_and_train(tmp_path: Path) -> None:
    done = run_program("networks.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *["strategy taken"] * 4,
        "replicas 150 True",
        "slim variables ['net/conv/conv_1/weights', 'net/conv/conv_1/BatchNorm/beta', "
        "'net/conv/conv_1/BatchNorm/moving_mean', 'net/conv/conv_1/BatchNorm/moving_variance', "
        "'net/conv/conv_2/weights', 'net/conv/conv_2/BatchNorm/beta', "
        "'net/conv/conv_2/BatchNorm/moving_mean', 'net/conv/conv_2/BatchNorm/moving_variance', "
        "'net/logits/weights', 'net/logits/biases']",
        "slim outputs ['net/conv/conv_1', 'net/conv/conv_2', 'net/logits', 'net/pool']",
        "slim accuracy 1.0, restored True",
        "layers ['separable/depthwise_weights', 'separable/pointwise_weights', 'norm/beta', "
        "'norm/gamma', 'plain/weights', 'stack/stack_1/weights', 'stack/stack_1/biases', "
        "'stack/stack_2/weights', 'stack/stack_2/biases'] (2, 3)",
        "rnn (2, 8) (2, 5, 8) (2, 5)",
        "sequence loss True",
        "numpy int64 float64 True True",
        "nest [1, 2, 3]",
        "queue [array([1]), array([1, 2], dtype=int32), array([1., 1., 1.], dtype=float32)]",
        "digits ['hidden1/weights', 'hidden1/biases', 'hidden2/weights', 'hidden2/biases', "
        "'softmax_linear/weights', 'softmax_linear/biases']",
    ]
