"""Time and CPU from `phalanx run` to the first step, relative to the bare import.

The job has a chief, 2 workers and 1 ps. The bare process, on the same cores, only imports
TensorFlow and Keras. Both run in turn, for several rounds. CPU time is that of all processes
until the first step: on a machine that others use too, it is the steadier figure.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 3
COMMAND_ROUNDS = 11
SHAPE = ("--workers", "2", "--ps", "1")
EXAMPLE = Path(__file__).parent.parent / "examples" / "mnist" / "train.py"
PHALANX = [sys.executable, "-m", "phalanx"]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and seconds of CPU time."""

    wall: float
    cpu: float


def measure_import() -> Cost:
    """Import TensorFlow and Keras in one process."""
    command = [sys.executable, "-c", "import tensorflow, keras"]
    started, before = time.perf_counter(), os.times()
    if subprocess.run(command, stderr=subprocess.DEVNULL, timeout=300, check=False).returncode:
        raise SystemExit("TensorFlow and Keras cannot be imported")
    return Cost(time.perf_counter() - started, _cpu_of_children() - _sum_children(before))


def measure_first_step() -> Cost:
    """Start the job, and measure until the chief logs its first step."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *PHALANX, "run", *SHAPE, "--log-dir", f"{directory}/logs", str(EXAMPLE),
            "--model-dir", directory, "--train-steps", "3", "--log-steps", "1",
        ]  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        cost = None
        for line in process.stdout:
            if "step 1" in line and cost is None:
                cost = Cost(time.perf_counter() - started, sum(measure_tree(process.pid).values()))
        if process.wait(60) or cost is None:
            raise SystemExit(f"the run failed: {' '.join(command)}")
        return cost


def measure_tree(root: int) -> dict[int, float]:
    """Return the CPU seconds of each process below a process, and of those that they waited for."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        seconds[number] = sum(map(int, fields[11:15])) / TICKS
    found = {root}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return {number: seconds[number] for number in found}


def measure_command(command: list[str]) -> Cost:
    """Return the median cost of a command."""
    costs = []
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(COMMAND_ROUNDS):
            started, before = time.perf_counter(), os.times()
            subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=60)
            wall = time.perf_counter() - started
            costs.append(Cost(wall, _cpu_of_children() - _sum_children(before)))
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
    )


def _cpu_of_children() -> float:
    return _sum_children(os.times())


def _sum_children(times: os.times_result) -> float:
    return times.children_user + times.children_system


def main() -> None:
    imports, steps = [], []
    for number in range(ROUNDS):
        imports.append(measure_import())
        steps.append(measure_first_step())
        for name, cost in (("bare import", imports[-1]), ("first step", steps[-1])):
            figures = f"{cost.wall:5.1f} s, {cost.cpu:5.1f} s of CPU time"
            print(f"round {number + 1}: {name:12} {figures}", flush=True)
    pairs = list(zip(steps, imports, strict=True))
    wall = statistics.median(step.wall / bare.wall for step, bare in pairs)
    cpu = statistics.median(step.cpu / bare.cpu for step, bare in pairs)
    usage = measure_command([*PHALANX, "--help"])
    python = measure_command([sys.executable, "-c", "pass"])
    launched = measure_command([*PHALANX, "run", "--", sys.executable, "-c", "pass"])
    print(f"RESULT first_step_vs_import {wall:.2f} x goal <= 2.2")
    print(f"RESULT first_step_vs_import_cpu {cpu:.2f} x goal <= 2.2")
    print(f"RESULT help {usage.wall:.3f} s goal <= 0.15")
    print(f"RESULT help_cpu {usage.cpu:.3f} s goal <= 0.15")
    print(f"RESULT run_adds {launched.wall - python.wall:.3f} s goal <= 0.3")
    print(f"RESULT run_adds_cpu {launched.cpu - python.cpu:.3f} s goal <= 0.3")


if __name__ == "__main__":
    main()
