"""The Cluster page in a browser, of a run in which a worker is killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.train.model_dir.task_files import TaskReport, read_task_file

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def running(*command: object, env: dict[str, str]) -> Iterator[None]:
    """Run a Phalanx command until the end of the block."""
    arguments = [sys.executable, "-m", "phalanx", *map(str, command)]
    process = subprocess.Popen(arguments, env=env, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


def wait_for(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 300
    while not look():
        assert time.monotonic() < deadline, f"{what} did not happen within 300 s"
        time.sleep(0.5)


def read(model_dir: Path, task: str) -> TaskReport:
    return read_task_file(model_dir / "cluster" / f"{task}.json") or TaskReport(task)


def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.slow
def test_cluster_page_shows_a_killed_and_restarted_worker(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    if BROWSER is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    model_dir = tmp_path / "runs/digits"
    shape = ("--workers", 2, "--ps", 2, "--restarts", 2, "--log-dir", tmp_path / "logs")
    train = (ROOT / "examples/mnist/train.py", "--model-dir", model_dir)
    limits = ("--train-steps", 10_000_000, "--save-steps", 2000)
    with running("run", *shape, *train, *limits, env=environ):
        wait_for(lambda: (read(model_dir, "chief-0").step or 0) > 100, "training")
        first = read(model_dir, "worker-1").pid
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: read(model_dir, "worker-1").restarts == 1, "the restart")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with running(
            "board", tmp_path / "runs", "--port", port, "--host", "127.0.0.1", env=environ
        ):
            base = f"http://127.0.0.1:{port}/data"
            wait_for(lambda: fetch(f"{base}/plugins_listing"), "the start of TensorBoard")
            listing = json.loads(fetch(f"{base}/plugins_listing"))
            assert listing["phalanx_cluster"]["enabled"]
            browse = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu"]
            profile = f"--user-data-dir={tmp_path / 'profile'}"
            url = f"{base}/plugin_entry.html?name=phalanx_cluster"
            shot = tmp_path / "cluster.png"
            page = subprocess.run(
                [*browse, profile, "--virtual-time-budget=8000", "--dump-dom", url],
                capture_output=True, text=True, timeout=120, check=True,
            ).stdout  # fmt: skip
            subprocess.run(
                [*browse, profile, "--virtual-time-budget=8000", "--window-size=1150,1050",
                 f"--screenshot={shot}", url],
                capture_output=True, timeout=120, check=True,
            )  # fmt: skip
            if kept := os.environ.get("PHALANX_SCREENSHOTS"):
                shutil.copy(shot, Path(kept, "cluster.png"))
    for task in ("chief-0", "worker-0", "worker-1", "ps-0", "ps-1"):
        assert f'data-task="{task}"' in page
    assert 'data-kind="lost"' in page
    assert "it was killed, or its host is gone" in page
    assert 'data-kind="saved"' in page
    assert "examples/s" in page
    for trainer in ("chief-0", "worker-0", "worker-1"):
        assert f'data-parts="{trainer}"' in page
    assert "waiting for data" in page
    assert "waiting for peers or ps" in page
    assert shot.stat().st_size > 10_000
