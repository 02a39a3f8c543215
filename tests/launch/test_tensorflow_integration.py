"""Real TensorFlow clusters: old programs and new ones, by `phalanx run` and by hand."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.launch.backends.local.ports import hold_ports

pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

ROOT = Path(__file__).parents[2]
TF1 = ROOT / "examples/tf1/train.py"
TF2 = ROOT / "examples/plain_tensorflow/train.py"

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_tensorflow_1_program_trains_as_it_is(phalanx: Phalanx, tmp_path: Path) -> None:
    done = phalanx(
        *("run", "--no-chief", "--workers", 2, "--ps", 1, TF1),
        *("--job_name={role}", "--task_index={index}"),
        *("--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}", "--model_dir=model"),
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    losses = re.findall(r"worker [01] stopped at step \d+ with loss (\S+)", done.stdout)
    assert len(losses) == 2
    assert all(float(loss) < 1e-3 for loss in losses)
    assert list((tmp_path / "model").glob("model.ckpt-*.index"))


def accuracy(output: str) -> float:
    match = re.search(r"accuracy (\S+)% on new images", output)
    assert match, output[-3000:]
    return float(match[1])


@pytest.mark.slow
def test_one_master_two_ps_and_two_workers_by_phalanx_run(phalanx: Phalanx) -> None:
    done = phalanx("run", "--workers", 2, "--ps", 2, "--linger", 0, TF2, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert accuracy(done.stdout) > 80


TASKS = ["ps 0", "ps 1", "worker 0", "worker 1", "master 0"]


def test_one_master_two_ps_and_two_workers_by_hand(tmp_path: Path, environ: dict[str, str]) -> None:
    """Five shells, each with its own `export TF_CONFIG=…`."""
    with hold_ports(5) as ports, contextlib.ExitStack() as shells:
        master, *rest = (f"localhost:{port}" for port in ports)
        addresses = f"--master {master} --ps {rest[0]} --ps {rest[1]} " + " ".join(
            f"--worker {worker}" for worker in rest[2:]
        )
        for task in TASKS:
            make = f"{sys.executable} -m phalanx tf-config make {task} {addresses}"
            shell = subprocess.Popen(
                ["bash", "-c", f"export TF_CONFIG=$({make}); exec {sys.executable} {TF2}"],
                cwd=tmp_path,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            shells.callback(shell.wait)
            shells.callback(shell.kill)
        output, _ = shell.communicate(timeout=600)
    assert shell.returncode == 0, output[-3000:]
    assert accuracy(output) > 80


def test_tensorflow_reads_the_cluster_as_it_was_meant(environ: dict[str, str]) -> None:
    code = """
import json, tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
print(json.dumps([resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id]))
"""
    make = [*("make", "worker", "1", "--master", "m:1", "--worker", "a:1", "--worker", "b:1")]
    made = subprocess.run(
        [sys.executable, "-m", "phalanx", "tf-config", *make],
        check=True,
        capture_output=True,
        text=True,
    )
    read = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, "TF_CONFIG": made.stdout, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
        capture_output=True,
        text=True,
    )
    cluster = {"chief": ["m:1"], "worker": ["a:1", "b:1"]}
    assert json.loads(read.stdout) == [cluster, "worker", 1]
