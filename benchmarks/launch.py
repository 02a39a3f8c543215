"""How fast the launcher starts and ends tasks, whether ports clash, how long preflight takes.

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
    """Seconds from calling the launcher to its end, with tasks that sleep for a second."""
    started = time.monotonic()
    command = [*RUN, "--workers", str(TASKS - 1), "--", "sleep", "1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    return time.monotonic() - started


def start_bare_processes() -> float:
    """The same number of bare processes, as the measure of what the machine can do."""
    started = time.monotonic()
    processes = [subprocess.Popen(["sleep", "1"]) for _ in range(TASKS)]
    for process in processes:
        process.wait()
    return time.monotonic() - started


def count_clashes(folder: str) -> int:
    """Start many runs at the same time, and count the ports that two of them were given."""
    command = [*RUN, "--workers", "3", "--", "sh", "-c", "echo $TF_CONFIG; sleep 20"]
    # All of them hold their ports while the last one chooses its own.
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
    assert len(ports) == 4 * RUNS, f"only {len(ports)} ports were given out"
    return len(ports) - len(set(ports))


def check_silent_peers() -> float:
    """Seconds for a preflight of peers none of which answers, over the limit."""
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
        ours, bare = [], []
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
            ours.append(start_and_end_tasks(folder))
            bare.append(start_bare_processes())
        print(f"{RUNS} runs at once", file=sys.stderr)
        clashes = count_clashes(folder)
        logs = len(list(Path(folder).rglob("*.log")))
        assert logs == ROUNDS * TASKS + 4 * RUNS, logs
        peers = check_silent_peers()
    print(f"{TASKS} bare processes: {statistics.median(bare):.2f} s")
    print(f"RESULT launch_{TASKS}_tasks {statistics.median(ours):.2f} s goal <= 20")
    print(f"RESULT port_clashes_of_{RUNS}_runs {clashes} ports goal <= 0")
    print(f"RESULT preflight_{PEERS}_peers_over_limit {peers / LIMIT:.2f} x goal <= 1")


if __name__ == "__main__":
    main()
