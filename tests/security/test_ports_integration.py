"""Only the hosts of a job reach the servers of its tasks, whatever started them."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest
from tests.conftest import COMMAND
from tests.security.closed_ports import PROGRAM, VARIABLE, check_closed, wait_for_tasks
from tests.servers import namespaces

pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")


def test_local_job_listens_on_loopback_only(
    stranger: namespaces.Namespace, tmp_path: Path, environ: dict[str, str]
) -> None:
    folder, value = tmp_path / "tasks", uuid.uuid4().hex
    folder.mkdir()
    with subprocess.Popen(
        [*COMMAND, "run", "--workers", "1", "--data-workers", "1", PROGRAM, folder],
        env={**environ, VARIABLE: value},
        cwd=tmp_path,
    ) as job:
        try:
            addresses = wait_for_tasks(folder, 2)
            # The dispatcher and the data worker listen too.
            check_closed(stranger, value, addresses, tasks=4)
        finally:
            (folder / "stop").touch()
        assert job.wait(120) == 0
