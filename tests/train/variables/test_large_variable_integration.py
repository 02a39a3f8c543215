"""Large dense weights on real parameter servers. In one process: test_large_variable.py."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.model_dir.table_changes import read_tensor
from phalanx.train.variables.described_variable import describe_slice

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "programs/large_variable.py"
# PHALANX_LARGE_ROWS=3_000_000 makes the weight one of 3 GB; the worker then needs twice as much.
ROWS, WIDTH, IDS = int(os.environ.get("PHALANX_LARGE_ROWS", "600_000")), 256, 64
NAME = "model/_operations/1/_embeddings/.ATTRIBUTES/VARIABLE_VALUE"


def find(pattern: str, log: str) -> Any:
    return [float(number) for number in re.findall(pattern, log)[-1]]


def read_rows(path: str, numbers: Any) -> Any:
    """Read rows of the weight without the others."""
    specs = [describe_slice((ROWS, WIDTH), int(number), 1) for number in numbers]
    dtypes = [tf.float32] * len(specs)
    return np.concatenate(tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=[NAME] * len(specs), shape_and_slices=specs, dtypes=dtypes
    ))  # fmt: skip


def test_chief_never_has_a_large_weight(start_cluster: Any, tmp_path: Path) -> None:
    flags = ["--model-dir", str(tmp_path), f"--rows={ROWS}", "--global-batch-size=16"]
    first = start_cluster("c w p", *flags, "--train-steps=4", program=PROGRAM)
    first.check()
    trained = find(r"STEP (\d+) LOSS (\S+)", first.log("chief-0"))
    peak, before = find(r"PEAK (\d+) BEFORE (\d+)", first.log("chief-0"))
    assert trained[0] >= 4
    assert peak - before < 0.6 * ROWS * WIDTH * 4
    assert peak < 1.5e9
    step = int(trained[0])
    looked_up = np.arange(IDS) * (ROWS // IDS)
    start, end = (read_rows(f"{tmp_path}/model.ckpt-{n}", looked_up) for n in (0, step))
    assert np.abs(start - end).max(axis=1).min() > 0
    others = looked_up[1:] - 1
    start, end = (read_rows(f"{tmp_path}/model.ckpt-{n}", others) for n in (0, step))
    np.testing.assert_array_equal(start, end)
    # Two servers restore it, and evaluate what one has trained.
    second = start_cluster("c w p p", *flags, f"--train-steps={step}", program=PROGRAM)
    second.check()
    restored = find(r"STEP (\d+) LOSS (\S+)", second.log("chief-0"))
    assert restored == pytest.approx(trained, rel=1e-5)
    peak, before = find(r"PEAK (\d+) BEFORE (\d+)", second.log("chief-0"))
    assert peak - before < 0.6 * ROWS * WIDTH * 4


def test_checkpoint_is_that_of_one_tensor(start_cluster: Any, tmp_path: Path) -> None:
    rows = 100_000
    flags = ["--model-dir", str(tmp_path), f"--rows={rows}", "--global-batch-size=16"]
    start_cluster("c w p", *flags, "--train-steps=2", program=PROGRAM).check()
    path = tf.train.latest_checkpoint(str(tmp_path))
    assert read_tensor(str(path), NAME).shape == (rows, WIDTH)
