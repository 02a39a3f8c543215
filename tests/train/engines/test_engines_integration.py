"""The same experiment trains the same weights with every engine, on real clusters."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# 91 examples in batches of 30: each pass ends with a batch of one example, for one worker.
FLAGS = ("--global-batch-size", "30", "--save-steps", "10", "--log-steps", "10")
# What a hook changes must reach every replica, and what follows the last step must happen on each.
EXACT = (*FLAGS, "--train-steps", "20", "--halve-learning-rate-at", "15", "--use-ema")

Read = Callable[[Path, int], dict[str, Any]]


@pytest.fixture(scope="module")
def reference(start_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One process, 20 steps, saved at 10 and 20."""
    directory = tmp_path_factory.mktemp("reference")
    tasks = start_cluster("c", "--model-dir", str(directory), *EXACT)
    tasks.check()
    return directory, metrics(tasks.log("chief-0"))


def metrics(log: str) -> Any:
    line = next(line for line in log.splitlines() if line.startswith("METRICS"))
    return ast.literal_eval(line.removeprefix("METRICS "))


def check_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    assert any("optimizer" in name for name in wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


def copy_at_step_10(reference: Path, to: Path) -> None:
    for path in reference.glob("model.ckpt-10.*"):
        shutil.copy(path, to)
    (to / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')


@pytest.mark.parametrize(
    ("shape", "flags", "restored"),
    [
        pytest.param(
            "c",
            ["--devices-there=3", "--devices=CPU:0,CPU:1,CPU:2"],
            False,
            id="devices",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "c",
            ["--devices-there=2", "--devices=CPU:0,CPU:1", "--variables=cpu"],
            True,
            id="cpu",
            marks=pytest.mark.slow,
        ),
        pytest.param("c", ["--accumulate=3"], True, id="accumulated", marks=pytest.mark.slow),
        pytest.param("c w", [], True, id="chief and a worker"),
        pytest.param("w w w", [], False, id="three workers", marks=pytest.mark.slow),
        pytest.param(
            "c w",
            ["--bytes-per-pack=1000", "--communication=ring", "--collective-seconds=60"],
            True,
            id="packs",
            marks=pytest.mark.slow,
        ),
        pytest.param("c w p p", ["--sync"], False, id="synchronous on two ps"),
        pytest.param(
            "w w w p", ["--sync"], True, id="synchronous on a ps, no chief", marks=pytest.mark.slow
        ),
    ],
)
def test_synchronous_training_equals_one_process(
    shape: str,
    flags: list[str],
    restored: bool,
    start_cluster: Any,
    reference: tuple[Path, Any],
    read_checkpoint: Read,
    tmp_path: Path,
) -> None:
    wanted, wanted_metrics = reference
    if restored:
        copy_at_step_10(wanted, tmp_path)
    tasks = start_cluster(shape, "--model-dir", str(tmp_path), *EXACT, *flags)
    tasks.check()
    check_equal(read_checkpoint(tmp_path, 20), read_checkpoint(wanted, 20))
    chief = "chief-0" if "c" in shape else "worker-0"
    found = metrics(tasks.log(chief))
    assert found == pytest.approx(wanted_metrics, rel=1e-4)
    assert ("restored step 10" in tasks.log(chief)) == restored


@pytest.mark.slow
@pytest.mark.parametrize("compress", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        pytest.param("c w", ["--bytes-per-pack=1000"], id="workers"),
        pytest.param("c", ["--devices-there=2", "--devices=CPU:0,CPU:1"], id="devices"),
    ],
)
def test_compressed_gradients_train_nearly_the_same_weights(
    compress: str,
    shape: str,
    flags: list[str],
    start_cluster: Any,
    reference: tuple[Path, Any],
    read_checkpoint: Read,
    tmp_path: Path,
) -> None:
    wanted, wanted_metrics = reference
    compressed = (*EXACT, f"--compress={compress}", *flags)
    tasks = start_cluster(shape, "--model-dir", str(tmp_path), *compressed)
    tasks.check()
    weights, exact = read_checkpoint(tmp_path, 20), read_checkpoint(wanted, 20)
    kernels = [name for name, value in exact.items() if value.ndim == 2]
    assert kernels, list(exact)
    for name in kernels:
        error = np.abs(weights[name] - exact[name]).max() / np.abs(exact[name]).max()
        # Rounded to the few bits of half precision, and no worse.
        assert 1e-6 < error < 0.02
    assert metrics(tasks.log("chief-0")) == pytest.approx(wanted_metrics, rel=0.05)


def test_async_applies_every_gradient_once_and_learns(
    start_cluster: Any, reference: tuple[Path, Any], read_checkpoint: Read, tmp_path: Path
) -> None:
    wanted, _ = reference
    copy_at_step_10(wanted, tmp_path)
    dump = tmp_path / "begin.npz"
    tasks = start_cluster(
        "c w w p p", "--model-dir", str(tmp_path), "--train-steps", "400", "--count-updates",
        "--dump-at-begin", str(dump), "--use-ema", *FLAGS,
    )  # fmt: skip
    tasks.check()
    log = tasks.log("chief-0")
    assert "UPDATES 400 STEP 400" in log
    assert metrics(log)["accuracy"] > 0.6
    saved = read_checkpoint(tmp_path, 400)
    assert saved["step/.ATTRIBUTES/VARIABLE_VALUE"] == 400
    begin = read_checkpoint(wanted, 10)
    for value in np.load(dump).values():
        assert any(
            value.shape == other.shape and np.array_equal(value, other) for other in begin.values()
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--xla"], id="xla"),
        pytest.param(["--mixed-precision=bfloat16"], id="bfloat16"),
        pytest.param(["--clip-norm=1"], id="clipped"),
        pytest.param(["--accumulate=3"], id="accumulated"),
    ],
)
def test_async_learns_with_every_setting(
    flags: list[str], start_cluster: Any, tmp_path: Path
) -> None:
    tasks = start_cluster(
        "c w p", "--model-dir", str(tmp_path), "--train-steps", "300", "--count-updates", *FLAGS,
        *flags,
    )  # fmt: skip
    tasks.check()
    log = tasks.log("chief-0")
    assert "UPDATES 300 STEP 300" in log
    assert metrics(log)["accuracy"] > 0.6


@pytest.mark.slow
def test_data_that_calls_python_runs_in_the_process_of_each_trainer(
    start_cluster: Any, tmp_path: Path
) -> None:
    flags = ["--model-dir", str(tmp_path), "--train-steps", "100", *FLAGS, "--generates"]
    tasks = start_cluster("c w p", *flags)
    tasks.check()
    for task, shard in (("chief-0", 0), ("worker-0", 1)):
        assert f"READING shard {shard} of 2" in tasks.log(task)
        assert f"READING shard {1 - shard} of 2" not in tasks.log(task)
    assert metrics(tasks.log("chief-0"))["accuracy"] > 0.6


@pytest.mark.slow
def test_restarted_worker_builds_its_data_again(start_cluster: Any, tmp_path: Path) -> None:
    flags = ["--model-dir", str(tmp_path), "--train-steps", "1000000", *FLAGS, "--generates"]
    tasks = start_cluster("c w p", *flags)
    tasks.wait_for_line("worker-0", "READING shard 1 of 2")
    tasks.processes["worker-0"].kill()
    tasks.processes["worker-0"].wait()
    tasks.start("worker-0")
    tasks.wait_for_line("worker-0", "READING shard 1 of 2")
    tasks.processes["chief-0"].terminate()
    assert set(tasks.wait().values()) == {75}


@pytest.mark.slow
def test_async_resumes_in_the_middle_of_the_data(start_cluster: Any, tmp_path: Path) -> None:
    # One trainer has 4 batches, the other 3, and they read them 5 times: 35 updates.
    flags = ["--model-dir", str(tmp_path), *FLAGS, "--epochs", "5", "--steps-per-call", "1"]
    start_cluster("c w p", *flags, "--train-steps", "20").check()
    tasks = start_cluster("c w p", *flags)
    tasks.check()
    assert "restored step 20" in tasks.log("chief-0")
    # The checkpoint knows how many of the first 20 updates each trainer has made.
    assert "saved step 35" in tasks.log("chief-0")


@pytest.mark.slow
def test_one_process_resumes_from_parameter_servers(
    start_cluster: Any, tmp_path: Path, read_checkpoint: Read
) -> None:
    flags = ["--model-dir", str(tmp_path), *FLAGS]
    start_cluster("c w p", *flags, "--train-steps", "30").check()
    before = read_checkpoint(tmp_path, 30)
    dump = tmp_path / "begin.npz"
    tasks = start_cluster("c", *flags, "--train-steps", "31", "--dump-at-begin", str(dump))
    tasks.check()
    assert "restored step 30" in tasks.log("chief-0")
    for value in np.load(dump).values():
        assert any(np.array_equal(value, other) for other in before.values())


@pytest.mark.slow
def test_update_does_not_wait_for_backup_workers(
    start_cluster: Any, read_checkpoint: Read, tmp_path: Path
) -> None:
    flags = ["--model-dir", str(tmp_path), "--train-steps", "40", *FLAGS, "--sync"]
    tasks = start_cluster("c w w p", *flags, "--replicas-to-aggregate", "2")
    tasks.check()
    assert read_checkpoint(tmp_path, 40)
    assert metrics(tasks.log("chief-0"))["loss"] < 1.0


@pytest.mark.slow
def test_with_backups_passes_and_evaluations_go_on_without_a_lost_worker(
    start_cluster: Any, tmp_path: Path
) -> None:
    flags = ["--model-dir", str(tmp_path), "--sync", "--global-batch-size", "30"]
    flags += ["--epochs", "12", "--eval-every-steps", "20", "--log-steps", "10", "--slow", "0.02"]
    tasks = start_cluster("c w w p", *flags, "--replicas-to-aggregate", "2")
    tasks.wait_for_line("chief-0", "Evaluation of step")
    tasks.processes.pop("worker-1").kill()
    tasks.check(300)
    log = tasks.log("chief-0")
    assert "the chief evaluates the shards of 1 lost workers of 2" in log
    evaluations = [line for line in log.splitlines() if "Evaluation of" in line]
    counts = {line.rpartition("(")[2].split()[0] for line in evaluations}
    assert counts == {"101"}
    progress = {
        line.rpartition("Evaluation ")[2] for line in log.splitlines() if "Evaluation [" in line
    }
    assert "[4/4]" in progress
    assert "epoch 12 of 12 is done" in log


@pytest.mark.slow
def test_without_backups_a_lost_worker_ends_the_run_at_once(
    start_cluster: Any, tmp_path: Path
) -> None:
    flags = (
        "--model-dir",
        str(tmp_path),
        "--sync",
        "--global-batch-size",
        "30",
        "--log-steps",
        "10",
    )
    tasks = start_cluster("c w w p", *flags, "--train-steps", "1000000", "--wait-seconds", "1000")
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes.pop("worker-1").kill()
    codes = tasks.wait(120)
    assert set(codes.values()) == {1}
    assert "a peer stopped responding: worker-1 was lost at step" in tasks.log("chief-0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        pytest.param("c w", [], id="all-reduce"),
        pytest.param("c w w p p", ["--count-updates"], id="asynchronous"),
        pytest.param("c w w p p", ["--sync"], id="synchronous"),
        pytest.param("c w w p p", ["--sync", "--replicas-to-aggregate", "2"], id="backups"),
    ],
)
def test_every_task_goes_back_when_one_trainer_reads_a_bad_batch(
    shape: str, flags: list[str], start_cluster: Any, read_checkpoint: Read, tmp_path: Path
) -> None:
    tasks = start_cluster(
        shape, "--model-dir", str(tmp_path), "--train-steps", "150", "--bad-batch", "40",
        *FLAGS, *flags,
    )  # fmt: skip
    tasks.check()
    log = tasks.log("chief-0")
    assert log.count("rolled back to step ") == 1, log
    assert metrics(log)["accuracy"] > 0.6
    for name, value in read_checkpoint(tmp_path, 150).items():
        if getattr(value, "dtype", None) is not None and value.dtype.kind == "f":
            assert np.isfinite(value).all(), name
    if "--count-updates" in flags:
        assert "UPDATES 150 STEP 150" in log
