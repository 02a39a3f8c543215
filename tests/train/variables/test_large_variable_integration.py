"""Large dense weights on real parameter servers. In one process: test_large_variable.py."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.variables.described_variable import describe_slice

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "programs/large_variable.py"
# With PHALANX_LARGE_ROWS=3_000_000 it has 3 GB: one that is trained then takes 25 GB in all tasks.
ROWS, WIDTH, IDS = int(os.environ.get("PHALANX_LARGE_ROWS", "600_000")), 256, 64
NAME = "optimizer/_trainable_variables/0/.ATTRIBUTES/VARIABLE_VALUE"


def find(pattern: str, log: str) -> Any:
    return [float(number) for number in re.findall(pattern, log)[-1]]


def read_rows(path: str, numbers: Any) -> Any:
    """Read rows of the weight without the others."""
    specs = [describe_slice((ROWS, WIDTH), int(number), 1) for number in numbers]
    dtypes = [tf.float32] * len(specs)
    return np.concatenate(tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=[NAME] * len(specs), shape_and_slices=specs, dtypes=dtypes
    ))  # fmt: skip


def check_memory(log: str, rows: int = ROWS) -> None:
    peak, before = find(r"PEAK (\d+) BEFORE (\d+)", log)
    # A process takes some hundred MB for TensorFlow and its functions.
    assert peak - before < 0.6 * rows * WIDTH * 4
    assert peak < 1.5e9


def test_chief_never_has_a_large_weight_that_workers_train(
    start_cluster: Any, tmp_path: Path
) -> None:
    flags = ["--model-dir", str(tmp_path), f"--rows={ROWS}", "--global-batch-size=16"]
    first = start_cluster("c w p", *flags, "--train-steps=4", program=PROGRAM)
    first.check()
    check_memory(first.log("chief-0"))
    path = str(tf.train.latest_checkpoint(str(tmp_path)))
    looked_up = np.arange(IDS) * (ROWS // IDS)
    start, end = (read_rows(p, looked_up) for p in (f"{tmp_path}/model.ckpt-0", path))
    assert np.abs(start - end).max(axis=1).min() > 0
    start, end = (read_rows(p, looked_up[1:] - 1) for p in (f"{tmp_path}/model.ckpt-0", path))
    np.testing.assert_array_equal(start, end)
    second = start_cluster("c w p p", *flags, "--train-steps=8", program=PROGRAM)
    second.check()
    check_memory(second.log("chief-0"))
    path = str(tf.train.latest_checkpoint(str(tmp_path)))
    np.testing.assert_array_equal(read_rows(path, looked_up[1:] - 1), end)


def test_large_weight_is_saved_and_restored_by_its_servers(
    start_cluster: Any, tmp_path: Path
) -> None:
    flags = ["--model-dir", str(tmp_path), f"--rows={ROWS}", "--global-batch-size=16"]
    flags += ["--only-save", "--train-steps=9"]
    sums = []
    for shape in ("c w p", "c w p", "c w p p"):
        tasks = start_cluster(shape, *flags, program=PROGRAM)
        tasks.check()
        check_memory(tasks.log("chief-0"))
        sums.append(find(r"SUM (\S+) AT (\d+)", tasks.log("chief-0")))
    assert sums[1] == sums[0]
    assert sums[2] == pytest.approx(sums[0], rel=1e-4)
    assert tf.train.load_checkpoint(str(tmp_path)).get_variable_to_shape_map()[NAME] == [
        ROWS,
        WIDTH,
    ]
