"""`phalanx check`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable

import pytest

from phalanx import Cluster, Role, Task, TFConfig

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


def test_unreachable_peers_are_reported_with_the_reason(phalanx: Phalanx) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = Cluster.of(chief=there, workers=["127.0.0.1:1", "no-such-host.invalid:2222"])
        config = TFConfig(cluster, Task(Role.WORKER)).dumps()
        done = phalanx("check", "-v", "--timeout", 60, TF_CONFIG=config)
    assert done.returncode == 1
    assert f"ok    chief-0 at {there}: answers (" in done.stdout
    assert "FAIL  worker-1 at no-such-host.invalid:2222: its name does not resolve" in done.stdout
    assert "worker-0: 1 of 2 peers answer" in done.stdout


def test_all_peers_answer(phalanx: Phalanx) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster = Cluster.of(workers=["a:1", f"127.0.0.1:{server.getsockname()[1]}"])
        done = phalanx("check", TF_CONFIG=TFConfig(cluster, Task(Role.WORKER)).dumps())
    assert (done.returncode, done.stdout) == (0, "worker-0: 1 of 1 peers answer\n")


def test_single_process_has_no_peers(phalanx: Phalanx) -> None:
    done = phalanx("check")
    assert (done.returncode, done.stdout) == (
        0,
        "chief-0 has no peers: there is nothing to reach\n",
    )


def test_invalid_tf_config_is_wrong_use(phalanx: Phalanx) -> None:
    done = phalanx("check", TF_CONFIG='{"cluster": {}')
    assert done.returncode == 2
    assert "TF_CONFIG: not JSON" in done.stderr


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "1e12", "soon"])
def test_invalid_timeout_is_wrong_use(phalanx: Phalanx, timeout: str) -> None:
    done = phalanx("check", "--timeout", timeout)
    assert done.returncode == 2
    assert "seconds" in done.stderr
