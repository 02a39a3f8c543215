"""examples/cifar10 as a user runs it, wherever it is trained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from phalanx import DataError
from phalanx.data import Share
from phalanx.data.datasets import make_synthetic

PROGRAM = Path(__file__).parents[2] / "examples" / "cifar10" / "main.py"
SMALL = ("--num-layers", "8", "--train-batch-size", "16", "--schedule", "one-cycle",
         "--learning-rate", "0.1", "--train-steps", "4", "--log-steps", "2")  # fmt: skip
PNG = b"\x89PNG"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 pictures to train on, and 50 to test with."""
    directory = tmp_path_factory.mktemp("pictures")
    make_synthetic(directory, count=160, evaluation=50)
    return directory


@pytest.fixture
def run(tmp_path: Path, environ: dict[str, str], data: Path) -> Run:
    """Run the program in one process, to its end."""

    def start(*flags: str, data_dir: Path = data) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), "--data-dir", str(data_dir), *flags],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    return start


def evaluations(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "eval" / "eval.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_one_process_with_four_devices(run: Run, tmp_path: Path) -> None:
    result = run(
        *SMALL, "--num-gpus=4", "--simulate-gpus", "--variable-strategy=CPU", "--model-dir=model",
        "--eval-batch-size=7", "--contact-sheet=sheets/pictures.png", "--num-intra-threads=1",
        "--change-light", "--log-shapes",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout
    assert "image after unit stage2_unit1: (None, 16, 16, 32)" in result.stderr
    # 7 does not divide 50: all are evaluated nevertheless.
    assert "(50 examples" in result.stderr
    assert [line["step"] for line in evaluations(tmp_path / "model")] == [4]
    assert (tmp_path / "sheets" / "pictures.png").read_bytes().startswith(PNG)

    curves = [sys.executable, str(PROGRAM.with_name("curves.py")), "model", "--epochs", "0.4"]
    subprocess.run(curves, cwd=tmp_path, check=True, timeout=600)
    table = (tmp_path / "curves.csv").read_text().splitlines()
    assert table[0] == "run,step,epoch,seconds,accuracy,loss"
    assert table[1].startswith("model,4,0.40,")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_flags_as_the_tutorial_of_2017_spelt_them(run: Run, tmp_path: Path) -> None:
    flags = (
        "--num_layers=8 --train_steps=2 --train_batch_size=16 --eval_batch_size=25 --momentum=0.9 "
        "--learning_rate=0.1 --weight_decay=0.0002 --use_distortion_for_training=True --num_gpus=0 "
        "--is_cpu_ps=True --run_experiment=True --sync=True --num_workers=2 --job-dir=model "
        "--num_intra_threads=1 --num_inter_threads=0 --log_device_placement=False "
        "--noforce_gpu_compatible --batch-norm-decay=0.997 --batch-norm-epsilon=1e-5"
    )
    result = run(*flags.split())
    assert result.returncode == 0, result.stderr
    for flag in ("num-workers", "run-experiment", "force-gpu-compatible"):
        assert f"--{flag} has no effect: " in result.stderr
    assert [line["step"] for line in evaluations(tmp_path / "model")] == [2]


@pytest.mark.slow
def test_three_trainers_round_the_default_batch(phalanx: Run, data: Path) -> None:
    result = phalanx(
        "run", "--workers", 2, PROGRAM, "--data-dir", data, "--model-dir", "model",
        "--num-layers", "8", "--train-steps", "1", timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "global_batch_size is 126, so that 3 replicas share it evenly" in result.stdout


@pytest.mark.slow
def test_two_workers_in_step(phalanx: Run, data: Path, tmp_path: Path) -> None:
    result = phalanx(
        "run", "--no-chief", "--workers", 2, PROGRAM, "--data-dir", data, "--model-dir", "model",
        *SMALL, "--label-smoothing", "0.1",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "synchronously by all-reduce" in result.stdout
    assert [line["step"] for line in evaluations(tmp_path / "model")] == [4]


@pytest.mark.slow
def test_both_variable_strategies_learn_the_same(run: Run, tmp_path: Path) -> None:
    losses = []
    for strategy in ("CPU", "GPU"):
        result = run(
            *SMALL, "--seed=3", "--num-gpus=4", "--simulate-gpus", f"--model-dir={strategy}",
            f"--variable-strategy={strategy}",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        losses.append(evaluations(tmp_path / strategy)[-1]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
def test_asynchronously_with_an_evaluator(phalanx: Run, data: Path, tmp_path: Path) -> None:
    result = phalanx(
        "run", "--workers", 2, "--ps", 1, "--evaluator", PROGRAM, "--data-dir", data,
        "--model-dir", "model", "--no-chief-trains", *SMALL[:-4], "--epochs", 2, "--save-steps", 10,
        timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "asynchronously on parameter servers" in result.stdout
    # Two workers with 8 pictures each: 10 updates of each in an epoch.
    assert evaluations(tmp_path / "model")[-1]["step"] == 40


@pytest.mark.slow
def test_by_hand_on_master_worker_and_ps(start_cluster: Any, data: Path, tmp_path: Path) -> None:
    tasks = start_cluster(
        "c w p", "--data-dir", str(data), "--model-dir", str(tmp_path / "model"), *SMALL,
        program=PROGRAM,
    )  # fmt: skip
    tasks.check()
    assert evaluations(tmp_path / "model")[-1]["step"] == 4


@pytest.mark.slow
def test_it_goes_on_where_it_was(run: Run, tmp_path: Path) -> None:
    flags = (*SMALL[:-4], "--model-dir=model", "--train-steps")
    assert run(*flags, "2").returncode == 0
    again = run(*flags, "4")
    assert again.returncode == 0, again.stderr
    assert [line["step"] for line in evaluations(tmp_path / "model")] == [2, 4]
    other = run(*flags, "6", "--num-layers=14")
    assert other.returncode != 0
    assert "model.ckpt-4 is a checkpoint of another model" in other.stderr


@pytest.fixture
def open_pictures(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's own input."""
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    return import_module("pictures").Cifar10Images


def test_a_data_directory_that_is_not_whole(open_pictures: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train\.tfrecord in .*: write the images with phal"):
        open_pictures(str(tmp_path)).count()
    make_synthetic(tmp_path, count=20)
    (tmp_path / "eval.tfrecord").unlink()
    with pytest.raises(DataError, match=r"no eval\.tfrecord in"):
        open_pictures(str(tmp_path)).test(10)


def test_records_of_another_dataset(open_pictures: Any, tmp_path: Path) -> None:
    make_synthetic(tmp_path, count=20, size=28)
    with pytest.raises(DataError, match=r"train\.tfrecord is not of CIFAR-10: .*2352"):
        open_pictures(str(tmp_path)).count()


def test_every_epoch_is_cut_out_and_ordered_anew(open_pictures: Any, data: Path) -> None:
    dataset = open_pictures(str(data)).train(16, Share())
    first, second = ([batch for batch, _ in dataset] for _ in range(2))
    assert len(first) == len(second) == 10
    assert abs(first[0] - second[0]).numpy().max() > 0.1


def test_outside_of_training_a_picture_is_seen_in_many_ways(open_pictures: Any) -> None:
    experiment = import_module("experiment")
    keras = import_module("keras")
    image = keras.Input((2, 3, 1))
    # Tells each view from the others: only what comes first in it counts.
    network = experiment.ManyViews(image, image[:, 0, 0, 0])
    picture = keras.ops.reshape(keras.ops.arange(1.0, 7.0), (1, 2, 3, 1))
    assert network(picture, training=True).numpy().tolist() == [1]
    # As it is and in the mirror 1 and 3, moved one way 0 and 0, moved the other way 5 and 0.
    assert network(picture).numpy().tolist() == [(1 + 3) / 4 + 5 / 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data-dir=nowhere"], "there is no train.tfrecord in nowhere"),
        (["--num-layers=21"], "6n+2"),
        (["--num-gpus=3"], "devices is 3, but this host has 0 GPUs"),
    ],
)
def test_what_cannot_be_trained_is_said(run: Run, flags: list[str], said: str) -> None:
    result = run("--model-dir=model", *flags)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
