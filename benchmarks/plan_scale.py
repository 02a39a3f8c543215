"""CPU time, memory and size of the plans of large jobs.

Every figure is measured in its own process. CPU time is the median of three.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from phalanx.launch.backends.docker import DockerLauncher
from phalanx.launch.backends.kubernetes import KubernetesLauncher
from phalanx.launch.backends.slurm import SlurmLauncher
from phalanx.launch.backends.slurm.plan import SlurmOptions
from phalanx.launch.backends.ssh import SshLauncher
from phalanx.launch.backends.ssh.plan import Host, SshOptions
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.kube.pods import PodOptions

ROUNDS = 3
HOSTS = tuple(Host.parse(f"node{number}") for number in range(1000))
LAUNCHERS = {
    "kubernetes": KubernetesLauncher(Container("digits:1"), PodOptions()),
    "slurm": SlurmLauncher(SlurmOptions("/home/ann", "/home/ann/logs", "python3")),
    "docker": DockerLauncher(Container("digits:1"), Path("logs"), "r1"),
    "ssh": SshLauncher(SshOptions(HOSTS, "/home/ann"), Path("logs"), "r1"),
}
# Docker and ssh pass a TF_CONFIG to every task, which Linux limits to 128 KiB.
SIZES = {"kubernetes": 10_000, "slurm": 10_000, "docker": 1000, "ssh": 1000}


def measure(backend: str, workers: int) -> None:
    program = Program(ProgramKind.FILE, "train.py", ("--job={role}",))
    job = Job("digits", program, workers=workers, ps=workers // 100)
    started = time.process_time()
    text = LAUNCHERS[backend].plan(job).render()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(json.dumps({"seconds": seconds, "gigabytes": peak, "bytes": len(text)}))


def measure_in_process(backend: str, workers: int) -> dict[str, float]:
    rounds = []
    for _ in range(ROUNDS):
        command = [sys.executable, __file__, backend, str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        rounds.append(json.loads(done.stdout))
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def main() -> None:
    for backend, workers in SIZES.items():
        found = measure_in_process(backend, workers)
        name = f"plan_{backend}_{workers}"
        print(f"RESULT {name} {found['seconds']:.3f} s goal <= 2")
        print(f"RESULT {name}_memory {found['gigabytes']:.3f} GiB goal <= 1")
    size = measure_in_process("kubernetes", 1000)["bytes"] / (1 << 20)
    print(f"RESULT manifest_kubernetes_1000 {size:.4f} MiB goal <= 1.5")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
