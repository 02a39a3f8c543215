"""A real Slurm with three nodes on this machine, in a temporary directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=2
KillWait=5
MpiDefault=none
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return why Slurm cannot be started here, or None."""
    if os.getuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in ("munged", "slurmctld", "slurmd") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: munge slurmctld slurmd slurm-client)"
    return None


def free_ports(count: int) -> int:
    """Return the first of several consecutive free ports; parallel tests look at other places."""
    for first in range(17100 + os.getpid() % 400 * count, 19900, count):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise OSError("no free ports")


@contextlib.contextmanager
def three_nodes(directory: Path) -> Iterator[dict[str, str]]:
    """Start the daemons, and yield the variables that Slurm's commands need."""
    first = free_ports(4)
    config = directory / "slurm.conf"
    config.write_text(
        CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            directory=directory,
            port=first,
            first=first + 1,
            last=first + 3,
        )
    )
    (directory / "state").mkdir()
    key = directory / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environ = {**os.environ, "SLURM_CONF": str(config)}
    munge = [
        "munged",
        "--foreground",
        "--force",
        f"--key-file={key}",
        f"--socket={directory}/munge.socket",
        f"--pid-file={directory}/munge.pid",
        f"--seed-file={directory}/munge.seed",
        f"--log-file={directory}/munge.log",
    ]
    # The node names resolve to this machine, in a hosts file that only the nodes see.
    names = directory / "hosts"
    names.write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 n1 n2 n3\n")
    alone = ["unshare", "--mount", "sh", "-c", f'mount --bind {names} /etc/hosts && exec "$@"', "-"]
    nodes = [[*alone, "slurmd", "-D", "-N", f"n{number}"] for number in (1, 2, 3)]
    daemons = [munge, ["slurmctld", "-D"], *nodes]
    with contextlib.ExitStack() as running:
        log = running.enter_context((directory / "daemons.out").open("ab"))
        for command in daemons:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
            running.callback(_end, process)
            if command is munge:
                _wait((directory / "munge.socket").exists)
        _wait(lambda: _idle_nodes(environ) == 3)
        running.callback(_end_jobs, environ)
        yield {"SLURM_CONF": str(config)}


def _end_jobs(environ: dict[str, str]) -> None:
    """Cancel the jobs that a failed test left, because their steps would outlive the daemons."""
    _ask(environ, "scancel", "--full", "--signal=KILL", "--user=root")
    _ask(environ, "scancel", "--user=root")
    deadline = time.monotonic() + 120
    while _ask(environ, "squeue", "--noheader") and time.monotonic() < deadline:
        time.sleep(0.2)


def _idle_nodes(environ: dict[str, str]) -> int:
    return len(_ask(environ, "sinfo", "--noheader", "--Node", "--states=idle").splitlines())


def _ask(environ: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "Slurm did not start"
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
