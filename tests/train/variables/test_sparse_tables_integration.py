"""Sparse tables on real clusters. In one process: test_sparse_tables.py."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.train.model_dir.table_changes import read_tensor

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[1] / "programs"
PROGRAM = PROGRAMS / "sparse_tables.py"
GROWING = PROGRAMS / "growing_tables.py"
OPTIMIZERS = PROGRAMS / "table_optimizers.py"
FLAGS = ("--global-batch-size", "30", "--save-steps", "10")


# Tables of more bytes than these are initialized, moved and saved in pieces.
PIECES = "--chunk-bytes=100"


@pytest.fixture(scope="module")
def reference(start_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, saved at 10 and 20."""
    directory: Path = tmp_path_factory.mktemp("reference")
    flags = ["--model-dir", str(directory), "--train-steps", "20", *FLAGS]
    start_cluster("c", *flags, program=PROGRAM).check()
    return directory


@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        pytest.param("c w p p", ["--sync", "--accumulate=3", PIECES], id="synchronous on two ps"),
        pytest.param("c", ["--devices-there=2", "--devices=CPU:0,CPU:1"], id="two devices"),
        pytest.param("c w w", [], id="three hosts"),
        pytest.param("c w p p p", ["--sync", PIECES], id="synchronous on three ps"),
    ],
)
def test_synchronous_training_equals_one_process_and_continues_its_checkpoint(
    shape: str, flags: list[str], start_cluster: Any, reference: Path, read_checkpoint: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    for path in reference.glob("model.ckpt-10.*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    flags = ["--model-dir", str(tmp_path), "--train-steps", "20", *FLAGS, *flags]
    start_cluster(shape, *flags, program=PROGRAM).check()
    wanted, found = read_checkpoint(reference, 20), read_checkpoint(tmp_path, 20)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


def test_rows_are_sent_by_the_chief_where_servers_do_not_see_model_dir(
    start_cluster: Any, reference: Path, read_checkpoint: Any, tmp_path: Path
) -> None:
    for path in reference.glob("model.ckpt-10.*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    # Another, empty directory is at the same path in the file systems of the servers.
    hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
    if subprocess.run([*hide, str(tmp_path), "true"], check=False).returncode:
        pytest.skip("this user may not mount file systems")
    flags = ["--model-dir", str(tmp_path), "--train-steps", "20", *FLAGS, "--sync", PIECES]
    flags += ["--full-save-every", "2", "--save-steps", "5"]
    tasks = start_cluster("c w p p", *flags, program=PROGRAM, wrap_ps=[*hide, str(tmp_path)])
    tasks.check()
    log = tasks.log("chief-0")
    for server in ("ps-0", "ps-1"):
        assert log.count(f"{server} does not share model_dir") == 1
        assert f"{server} does not see" in log
    # Saved whole at 15, after the restart, and incrementally at 20.
    assert "with the rows that changed since step 15" in log
    for name, value in read_checkpoint(reference, 20).items():
        found = read_tensor(str(tmp_path / "model.ckpt-20"), name)
        np.testing.assert_allclose(found, value, rtol=2e-4, atol=2e-6, err_msg=name)


def test_one_process_restores_rows_trained_asynchronously(
    start_cluster: Any, read_checkpoint: Any, tmp_path: Path
) -> None:
    flags = ["--model-dir", str(tmp_path), *FLAGS]
    tasks = start_cluster("c w w p p", *flags, "--train-steps", "400", program=PROGRAM)
    tasks.check()
    line = next(li for li in tasks.log("chief-0").splitlines() if li.startswith("METRICS"))
    assert ast.literal_eval(line.removeprefix("METRICS "))["loss"] < 0.05
    before = read_checkpoint(tmp_path, 400)
    start_cluster("c", *flags, "--train-steps", "401", program=PROGRAM).check()
    after = read_checkpoint(tmp_path, 401)
    tables = [name for name, value in before.items() if value.shape == (40, 3)]
    assert len(tables) == 3  # The rows, and their two slots of Adam.
    for name in tables:
        changed = np.abs(after[name] - before[name]).max(axis=1) > 0
        assert 0 < changed.sum() < 40


@pytest.fixture(scope="module")
def grown(start_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Growing tables in one process, saved at 10 and 20."""
    directory: Path = tmp_path_factory.mktemp("grown")
    flags = ["--model-dir", str(directory), "--train-steps", "20", *FLAGS]
    start_cluster("c", *flags, program=GROWING).check()
    return directory


@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        pytest.param("c w p p", ["--sync", "--accumulate=3"], id="synchronous on two ps"),
        pytest.param("c", ["--devices-there=2", "--devices=CPU:0,CPU:1"], id="two devices"),
        pytest.param("c w w", [], id="three hosts"),
        # One table has no row on the first of three parameter servers.
        pytest.param("c w p p p", ["--sync", PIECES], id="synchronous on three ps"),
        pytest.param("c w p", ["--sync"], id="synchronous on one ps"),
    ],
)
def test_growing_tables_equal_one_process_and_continue_its_checkpoint(
    shape: str, flags: list[str], start_cluster: Any, grown: Path, read_checkpoint: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    for path in grown.glob("model.ckpt-10.*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    flags = ["--model-dir", str(tmp_path), "--train-steps", "20", *FLAGS, *flags]
    start_cluster(shape, *flags, program=GROWING).check()
    wanted, found = read_checkpoint(grown, 20), read_checkpoint(tmp_path, 20)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


def test_growing_tables_learn_asynchronously_and_go_on_in_one_process(
    start_cluster: Any, read_checkpoint: Any, tmp_path: Path
) -> None:
    flags = ["--model-dir", str(tmp_path), "--global-batch-size", "30", "--save-steps", "300"]
    tasks = start_cluster("c w p p", *flags, "--train-steps", "300", program=GROWING)
    tasks.check(900)
    log = tasks.log("chief-0")
    line = next(li for li in log.splitlines() if li.startswith("METRICS"))
    assert ast.literal_eval(line.removeprefix("METRICS "))["loss"] < 0.4
    saved = read_checkpoint(tmp_path, 300)
    alone = start_cluster("c", *flags, "--train-steps", "301", program=GROWING)
    alone.check()
    for name, value in saved.items():
        if "/totals/" not in name:
            continue
        steps, admitted, evicted, expired = value[0]
        assert steps == 300
        after = read_checkpoint(tmp_path, 301)
        assert after[name][0, 0] == 301
        held = after[name.replace("/totals/", "/ids/")][:, :16]
        assert np.sum(held != -(2**63)) == after[name][0, 1] - after[name][0, 2:].sum()
        assert admitted > evicted + expired


@pytest.mark.parametrize(("own", "slices"), [([], 6), (["adagrad"], 5)])
def test_rows_are_trained_saved_and_restored_through_servers(
    own: list[str], slices: int, tmp_path: Path
) -> None:
    command = [sys.executable, str(PROGRAMS / "remote_shards.py"), str(tmp_path / "model"), *own]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"EQUAL {slices} tables and slots on 3 servers" in done.stdout


@pytest.fixture(scope="module")
def trained_alone(start_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tables and slots after 50 steps in one process, with each optimizer."""
    folder = tmp_path_factory.mktemp("alone")
    start_cluster("c", str(folder), program=OPTIMIZERS).check()
    return dict(np.load(folder / "found.npz"))


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_every_optimizer_and_combiner_trains_what_one_process_does(
    servers: int, start_cluster: Any, trained_alone: dict[str, Any], tmp_path: Path
) -> None:
    shape = "c w " + "p " * servers
    start_cluster(shape, str(tmp_path), "--sync", program=OPTIMIZERS).check(900)
    found = np.load(tmp_path / "found.npz")
    assert set(found) == set(trained_alone)
    for name, value in trained_alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
        if name.startswith("loss"):
            assert value[-1] < 0.9 * value[0], name
