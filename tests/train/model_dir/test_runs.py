"""Summaries of runs, from their files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phalanx.train.model_dir.metrics_log import MetricsEntry, format_entry
from phalanx.train.model_dir.runs import find_runs, read_run
from phalanx.train.model_dir.status import State, Status, write_status


def test_runs_are_found_by_their_files_and_not_inside_of_runs(tmp_path: Path) -> None:
    for name in ("a/status.json", "b/c/checkpoint", "a/export/checkpoint", ".d/checkpoint"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_runs(str(tmp_path)) == [f"{tmp_path}/a", f"{tmp_path}/b/c"]


def test_a_run_without_a_heartbeat_is_silent(tmp_path: Path) -> None:
    write_status(str(tmp_path), Status(State.RUNNING, 5, time=100.0))
    assert read_run(str(tmp_path), now=160.0).state is State.RUNNING
    assert read_run(str(tmp_path), now=200.0).state is State.SILENT
    write_status(str(tmp_path), Status(State.DONE, 5, time=100.0))
    assert read_run(str(tmp_path), now=9e9).state is State.DONE


def test_the_metrics_log_tells_the_step_when_the_status_is_older(tmp_path: Path) -> None:
    write_status(str(tmp_path), Status(State.RUNNING, 5, time=100.0))
    lines = [format_entry(MetricsEntry(step, {"loss": 9 / step})) for step in (4, 8)]
    (tmp_path / "train.jsonl").write_text("".join(lines))
    run = read_run(str(tmp_path), now=100.0)
    assert (run.step, run.last_loss) == (8, 9 / 8)
    assert run.best() is None


def test_runs_are_read_without_tensorflow(tmp_path: Path) -> None:
    code = f"""
import sys
from phalanx.train.model_dir.runs import find_runs, read_run
read_run({str(tmp_path)!r})
assert not {{"tensorflow", "keras"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
