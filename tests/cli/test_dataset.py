"""`phalanx dataset`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.in_process import invoke

from phalanx.records import count_records


def test_synthetic_images_are_written(tmp_path: Path) -> None:
    ran = invoke("dataset", "synthetic", "--count", 50, "--out", tmp_path)
    assert ran.stdout == f"50\t{tmp_path}/train.tfrecord\n10\t{tmp_path}/eval.tfrecord\n"
    assert count_records(str(tmp_path / "train.tfrecord")) == 50


def test_missing_source_is_reported(tmp_path: Path) -> None:
    for name in ("cifar10", "mnist"):
        ran = invoke("dataset", name, "--source", tmp_path / "none", "--out", tmp_path / "out")
        assert ran.returncode == 2
        assert str(tmp_path / "none") in ran.stderr
