"""`phalanx dataset`."""

from pathlib import Path

from tests.cli.in_process import invoke

from phalanx.records import count_records, read_table


def test_synthetic_images_are_written(tmp_path: Path) -> None:
    ran = invoke("dataset", "synthetic", "--count", 50, "--out", tmp_path)
    assert ran.stdout == f"50\t{tmp_path}/train.tfrecord\n10\t{tmp_path}/eval.tfrecord\n"
    assert count_records(str(tmp_path / "train.tfrecord")) == 50


def test_files_and_images_have_the_names_that_a_program_reads(tmp_path: Path) -> None:
    names = ("--suffix", "tfrecords", "--image-feature", "image_raw")
    ran = invoke("dataset", "synthetic", "--count", 10, *names, "--out", tmp_path)
    assert ran.stdout == f"10\t{tmp_path}/train.tfrecords\n2\t{tmp_path}/eval.tfrecords\n"
    assert read_table(tmp_path / "train.tfrecords").column_names == ["image_raw", "label"]
    wrong = invoke("dataset", "synthetic", "--image-feature", "label", "--out", tmp_path)
    assert wrong.returncode == 2
    assert "cannot be the feature 'label'" in wrong.stderr


def test_missing_source_is_reported(tmp_path: Path) -> None:
    for name in ("cifar10", "mnist"):
        ran = invoke("dataset", name, "--source", tmp_path / "none", "--out", tmp_path / "out")
        assert ran.returncode == 2
        assert str(tmp_path / "none") in ran.stderr
