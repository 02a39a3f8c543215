"""How fast the launcher starts and ends tasks, port conflicts, duration of the preflight check.

python benchmarks/launch.py
"""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phalanx import Cluster, Role, Task, TFConfig
from phalanx.cluster.preflight import check_peers

TASKS = 200
RUNS = 50
PEERS = 1000
LIMIT = 5.0
ROUNDS = 3
RUN = [sys.executable, "-m", "phalanx", "run"]


def start_and_end_tasks(folder: str) -> float:
    """Return the seconds that a job takes whose tasks sleep for one second."""
    started = time.monotonic()
    command = [*RUN, "--workers", str(TASKS - 1), "--", "sleep", "1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    return time.monotonic() - started


def start_bare_processes() -> float:
    """Return the seconds for the same number of bare processes, as a baseline."""
    started = time.monotonic()
    processes = [subprocess.Popen(["sleep", "1"]) for _ in range(TASKS)]
    for process in processes:
        process.wait()
    return time.monotonic() - started


def count_port_conflicts(folder: str) -> int:
    """Start many runs at the same time, and count the ports that two of them use."""
    command = [*RUN, "--workers", "3", "--", "sh", "-c", "echo $TF_CONFIG; sleep 20"]
    # All of them reserve their ports until the last one has chosen its own.
    runs = [
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(RUNS)
    ]
    ports: list[str] = []
    for run in runs:
        output, _ = run.communicate(timeout=300)
        ports += set(re.findall(r"127\.0\.0\.1:(\d+)", output))
    assert len(ports) == 4 * RUNS, f"only {len(ports)} ports were used"
    return len(ports) - len(set(ports))


def check_silent_peers() -> float:
    """Return the seconds that a preflight check of unresponsive peers takes."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = Cluster({Task(Role.WORKER, index): address for index in range(PEERS + 1)})
        started = time.monotonic()
        reports = check_peers(TFConfig(cluster, Task(Role.WORKER)), timeout=LIMIT)
        assert all(report.reason for report in reports)
        return time.monotonic() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        launched, bare = [], []
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
            launched.append(start_and_end_tasks(folder))
            bare.append(start_bare_processes())
        print(f"{RUNS} runs at the same time", file=sys.stderr)
        conflicts = count_port_conflicts(folder)
        logs = len(list(Path(folder).rglob("*.log")))
        assert logs == ROUNDS * TASKS + 4 * RUNS, logs
        peers = check_silent_peers()
    print(f"{TASKS} bare processes: {statistics.median(bare):.2f} s")
    print(f"RESULT launch_{TASKS}_tasks {statistics.median(launched):.2f} s goal <= 20")
    print(f"RESULT port_clashes_of_{RUNS}_runs {conflicts} ports goal <= 0")
    print(f"RESULT preflight_{PEERS}_peers_over_limit {peers / LIMIT:.2f} x goal <= 1")


if __name__ == "__main__":
    main()
