"""`phalanx board`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.cli.in_process import invoke


def test_board_shows_all_runs_in_tensorboard(runs_folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "board", "runs", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=runs_folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    try:
        assert process.stdout is not None
        port = next(m[1] for line in process.stdout if (m := re.search(r":(\d+)/", line)))
        runs: Any = []
        deadline = time.monotonic() + 200
        while not runs and time.monotonic() < deadline:
            address = f"http://localhost:{port}/data/runs"
            with urllib.request.urlopen(address, timeout=200) as answer:
                runs = json.loads(answer.read())
            time.sleep(0.3)
        assert "a" in runs
    finally:
        process.terminate()
        process.wait(200)


def test_board_without_event_files_is_an_error(tmp_path: Path) -> None:
    done = invoke("board", tmp_path)
    assert done.returncode == 2
    assert "no event files" in done.stderr
