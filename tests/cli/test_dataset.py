"""`phalanx dataset`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phalanx.records import count_records


def phalanx(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "dataset", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_synthetic_images_are_written(tmp_path: Path) -> None:
    ran = phalanx("synthetic", "--count", 50, "--out", tmp_path)
    assert ran.stdout == f"50\t{tmp_path}/train.tfrecord\n10\t{tmp_path}/eval.tfrecord\n"
    assert count_records(str(tmp_path / "train.tfrecord")) == 50


def test_missing_source_is_reported(tmp_path: Path) -> None:
    for name in ("cifar10", "mnist"):
        ran = phalanx(name, "--source", tmp_path / "none", "--out", tmp_path / "out")
        assert ran.returncode == 2
        assert str(tmp_path / "none") in ran.stderr
        assert "Traceback" not in ran.stderr
