"""Files that are nested deeply, or have numbers without end, are errors or are passed over."""

import json
from pathlib import Path

import pytest
from tests.security.measured import run_measured

DEEP = "[" * 200_000
HUGE = '{"state": "running", "step": 1e999, "time": 1, "reason": "", "loss": 1e999}'


@pytest.mark.parametrize("content", [DEEP, HUGE, '{"step": ' + "9" * 5000 + "}", '{"step": []}'])
@pytest.mark.parametrize("name", ["status.json", "train.jsonl", "eval/eval.jsonl"])
def test_strange_files_of_a_run_are_passed_over(name: str, content: str, tmp_path: Path) -> None:
    status = {"state": "failed", "step": 7, "time": 1.0, "reason": "no disk"}
    (tmp_path / "run/eval").mkdir(parents=True)
    (tmp_path / "run/status.json").write_text(json.dumps(status))
    (tmp_path / "run" / name).write_text(content + "\n")
    done = run_measured(tmp_path, "runs", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "unknown" in done.stdout if name == "status.json" else "no disk" in done.stdout


def test_deep_line_of_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"a": 1}\n{"a": ' + DEEP + "\n")
    out = tmp_path / "out.tfrecord"
    done = run_measured(tmp_path, "records", "convert", tmp_path / "deep.jsonl", "--out", out)
    assert done.returncode == 2, done.stderr
    assert "deep.jsonl, line 2, is not JSON" in done.stderr


def test_lines_of_json_without_common_names_take_linear_memory(tmp_path: Path) -> None:
    lines = [json.dumps({f"name {number}": number}) for number in range(8000)]
    (tmp_path / "wide.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out.tfrecord"
    done = run_measured(tmp_path, "records", "convert", tmp_path / "wide.jsonl", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "8,000 examples" in done.stdout
    assert done.peak < 250


@pytest.mark.parametrize("source", ["-" * 200_000 + "1", "x = " + "a." * 100_000 + "b", "(" * 5000])
def test_program_that_python_cannot_parse_is_an_error(source: str, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(source)
    done = run_measured(tmp_path, "tf1", "check", tmp_path / "old.py")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "nested too deeply" in done.stderr or "too many nested" in done.stdout
