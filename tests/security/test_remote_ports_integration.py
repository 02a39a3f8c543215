"""Only the hosts of a job reach its tasks, on backends that share the network of their hosts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.security.closed_ports import PROGRAM, VARIABLE, check_closed, wait_for_tasks
from tests.servers import namespaces, ray, slurm, sshd
from tests.servers.spark import start_spark, stop_spark

pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")
pytestmark = pytest.mark.slow

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


@contextlib.contextmanager
def job(phalanx: Phalanx, tmp_path: Path, *backend: object, **variables: str) -> Iterator[str]:
    """Launch a chief and a worker, which write their addresses to tmp_path/tasks."""
    value = uuid.uuid4().hex
    (tmp_path / "tasks").mkdir()
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), **variables}
    shape = ["--workers", 1, "--env", f"{VARIABLE}={value}", "--name", "listen"]
    done = phalanx("launch", *backend, *shape, PROGRAM, tmp_path / "tasks", **state)
    assert done.returncode == 0, done.stderr
    try:
        yield value
        (tmp_path / "tasks/stop").touch()
        ended = phalanx("logs", "-f", "listen", timeout=240, **state)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    finally:
        phalanx("cancel", "listen", **state)


@pytest.mark.skipif(sshd.why_not() is not None, reason=str(sshd.why_not()))
def test_ssh_job_accepts_its_own_hosts_only(
    stranger: namespaces.Namespace, phalanx: Phalanx, tmp_path: Path
) -> None:
    with sshd.running(tmp_path) as server:
        # The address of this host on the stranger's network.
        options = [
            f"{option}={stranger.host_address}" if option.startswith("--host=") else option
            for option in server.options()
        ]
        given = ["ssh", *options, "--directory", tmp_path, "--python", sys.executable]
        with job(phalanx, tmp_path, *given) as value:
            addresses = wait_for_tasks(tmp_path / "tasks", 2)
            assert addresses["chief-0"] == f"{stranger.host_address}:2222"
            check_closed(stranger, value, addresses, tasks=2)


@pytest.mark.skipif(slurm.why_not() is not None, reason=str(slurm.why_not()))
def test_slurm_job_accepts_its_own_hosts_only(
    stranger: namespaces.Namespace, phalanx: Phalanx, tmp_path: Path
) -> None:
    with slurm.three_nodes(tmp_path) as variables:
        given = ["slurm", "--nodes", 1, "--cpus", 1, "--python", sys.executable]
        with job(phalanx, tmp_path, *given, **variables) as value:
            names = wait_for_tasks(tmp_path / "tasks", 2)
            # All nodes are this machine.
            addresses = {
                task: f"127.0.0.1:{address.partition(':')[2]}" for task, address in names.items()
            }
            check_closed(stranger, value, addresses, tasks=2)


@pytest.mark.skipif(ray.why_not() is not None, reason=str(ray.why_not()))
def test_ray_job_accepts_its_own_hosts_only(
    stranger: namespaces.Namespace, phalanx: Phalanx, tmp_path: Path
) -> None:
    with (
        ray.three_nodes() as variables,
        job(phalanx, tmp_path, "ray", **variables) as value,
    ):
        addresses = wait_for_tasks(tmp_path / "tasks", 2)
        check_closed(stranger, value, addresses, tasks=2)


def test_spark_job_accepts_its_own_hosts_only(
    stranger: namespaces.Namespace, tmp_path: Path
) -> None:
    from phalanx.spark import run

    def listen(program: str, folder: str) -> None:
        import runpy
        import sys

        sys.argv[1:] = [folder]
        runpy.run_path(program)

    spark, folder, value = start_spark("local-cluster[2,1,1024]"), tmp_path / "tasks", "spark-ports"
    folder.mkdir()
    given = {"program": str(PROGRAM), "folder": str(folder)}
    training = threading.Thread(
        target=lambda: run(
            listen, arguments=given, workers=1, environment={VARIABLE: value}, spark=spark
        )
    )
    training.start()
    try:
        addresses = wait_for_tasks(folder, 2)
        check_closed(stranger, value, addresses, tasks=2)
    finally:
        (folder / "stop").touch()
        training.join(120)
        stop_spark(spark)
