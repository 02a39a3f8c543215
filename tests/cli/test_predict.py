"""`phalanx predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PROGRAM
from tests.cli.in_process import invoke


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_rows_of_every_kind_of_file_are_predicted_in_order(exported: Path, tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    (tmp_path / "b.jsonl").write_text('{"x": [1, 1, 1]}\n[2, 2, 2]\n')
    with tf.io.TFRecordWriter(str(tmp_path / "c.tfrecord")) as writer:
        value = tf.train.Feature(float_list=tf.train.FloatList(value=[9, 0, 1]))
        features = tf.train.Features(feature={"x": value})
        writer.write(tf.train.Example(features=features).SerializeToString())
    done = invoke("predict", exported, "a.csv", "b.jsonl", "c.tfrecord", "--batch-size", "2")
    assert done.returncode == 0, done.stderr
    assert [row["predictions"] for row in rows(done.stdout)] == [[6], [15], [3], [6], [10]]


def test_program_predicts_without_an_export(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n")
    done = invoke(
        "predict", trained / "train.py", "a.csv", "--model-dir", trained / "run", "--checkpoint",
        "best", "--out", "p.jsonl",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 predictions in p.jsonl" in done.stderr
    assert rows((tmp_path / "p.jsonl").read_text()) == [{"predictions": [6.0]}]


def test_program_flags_are_passed_to_the_program(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n")
    flagged = PROGRAM.replace('model_dir="run"', 'model_dir=sys.argv[sys.argv.index("--to") + 1]')
    (tmp_path / "flagged.py").write_text(flagged)
    done = invoke("predict", "flagged.py", "a.csv", "--program-flags", f"--to '{trained}/run'")
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout) == [{"predictions": [6.0]}]


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        (["{exported}", "missing.csv"], "there is no file missing.csv", 2),
        (["{exported}", "a.txt"], "its name must end with", 2),
        (["{exported}", "bad.csv"], "bad.csv, line 3", 2),
        (["{exported}", "short.csv"], "the model takes [3]", 2),
        (["{exported}", "a.csv", "--out", "p.xml"], ".jsonl or .parquet", 2),
        (["nothing", "a.csv"], "there is no program nothing", 2),
        (["train.py", "a.csv", "--program-flags", "'"], "No closing quotation", 2),
    ],
)
def test_wrong_use_is_reported_and_writes_nothing(
    exported: Path,
    tmp_path: Path,
    arguments: list[str],
    reason: str,
    code: int,
) -> None:
    for name, text in {
        "a.txt": "", "a.csv": "a,b,c\n1,2,3\n", "bad.csv": "a,b,c\n1,2,3\n1,x,3\n",
        "short.csv": "a,b\n1,2\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    before = set(tmp_path.iterdir())
    given = [argument.format(exported=exported) for argument in arguments]
    if "--out" not in given:
        given += ["--out", "p.jsonl"]
    done = invoke("predict", *given)
    assert (done.returncode, done.stdout) == (code, "")
    assert reason in done.stderr
    assert set(tmp_path.iterdir()) == before
