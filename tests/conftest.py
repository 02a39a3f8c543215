"""Fixtures of several tests: the command as a user runs it, and a clean environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.suite_table import pytest_addoption, pytest_terminal_summary  # noqa: F401

# Under nohup or in the background these signals are ignored, and child processes inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# Use the same examples in each run, and accept a slow machine.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

COMMAND = [sys.executable, "-m", "phalanx"]

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests that take longest, so that no process waits for another at the end."""
    items.sort(key=lambda item: not item.path.stem.endswith("_integration"))


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment without variables that describe a task or a cluster."""
    prefixes = (
        "TF_CONFIG",
        "JOB_NAME",
        "SLURM_",
        "PHALANX_",
        "OMP_",
        "TF_NUM_",
        "CUDA_",
        "TF_ENABLE_",
    )
    return {name: text for name, text in os.environ.items() if not name.startswith(prefixes)}


@pytest.fixture
def phalanx(tmp_path: Path, environ: dict[str, str]) -> Phalanx:
    """Run `phalanx` with arguments until it exits, in an empty directory."""

    def run(
        *arguments: object, timeout: float = 280, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env={**environ, **more},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


@pytest.fixture
def start_phalanx(
    tmp_path: Path, environ: dict[str, str]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `phalanx` in the background; processes that still run after the test are killed."""
    started = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def damaged_parquet(tmp_path: Path) -> Path:
    """A Parquet file with an intact footer and damaged rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(10_000)}), path)
    data = bytearray(path.read_bytes())
    data[100:5000] = b"\xff" * 4900
    path.write_bytes(data)
    return path
