"""What `submit` does, with an `ssh` that never comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.processes import wait_for

from phalanx import JobError
from phalanx.launch.backends.ssh import SshLauncher, launcher
from phalanx.launch.backends.ssh.plan import Host, SshOptions
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.processes.guardian import group_is_alive

SSH = """\
#!/bin/sh
case "$*" in *setsid*) exit ;; esac
cut -d ' ' -f 5 /proc/$$/stat > {group}
exec sleep 1000
"""


def test_copy_is_killed_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh, group = tmp_path / "ssh", tmp_path / "group"
    ssh.write_text(SSH.format(group=group))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(launcher, "_COPY_SECONDS", 3.0)
    options = SshOptions((Host.parse("gpu1"),), str(tmp_path), copies=(str(ssh),))
    start = SshLauncher(options, tmp_path / "job", "r1")
    plan = start.plan(Job("digits", Program(ProgramKind.FILE, "train.py")))
    with pytest.raises(JobError, match="copying to gpu1 failed: it took longer than 3 s"):
        start.submit(plan)
    wait_for(lambda: not group_is_alive(int(group.read_text())))
