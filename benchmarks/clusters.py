"""Run one program as all tasks of a local cluster, each with its TF_CONFIG."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def run_cluster(
    program: Path, shape: dict[str, int], *flags: str, threads: int = 0, seconds: float = 300
) -> str:
    """Run the tasks to their end and return the output of the first one.

    `threads` limits the threads of each task.
    """
    ports = iter(free_ports(sum(shape.values())))
    cluster = {
        role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in shape.items()
    }
    processes = []
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            if len(cluster) > 1 or len(addresses) > 1:
                environment["TF_CONFIG"] = json.dumps(
                    {"cluster": cluster, "task": {"type": role, "index": index}}
                )
            if threads:
                environment |= {"OMP_NUM_THREADS": str(threads), "BENCH_THREADS": str(threads)}
            is_chief = not processes
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(program), *flags],
                    env=environment,
                    stdout=subprocess.PIPE if is_chief else subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
    try:
        output, _ = processes[0].communicate(timeout=seconds)
        for process in processes[1:]:
            # Workers of other frameworks may not exit by themselves.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    if processes[0].returncode:
        raise SystemExit(f"{program.name} {' '.join(flags)} failed on {shape}")
    return output


def figure(output: str, name: str) -> float:
    """Return the number after `name` in the output."""
    return float(output.partition(f"{name} ")[2].split()[0])


def free_ports(count: int) -> list[int]:
    """Return ports that no process listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
