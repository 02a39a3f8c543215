"""Run a job under faults for an hour, a fault every 20 seconds, and check what is left of it.

    make soak                      an hour
    make soak SOAK="--seconds 300" five minutes

The job is examples/mnist/train.py on a chief, 2 workers and a ps. When the time is over, the job is
ended, which saves it, and finished without faults. The accuracy must be that of a job with as many
steps that met no fault. The supervisor of the job must not have grown, and no process may be left.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from phalanx.cluster.progress import read_progress
from phalanx.launch.backends.local.launcher import LocalLauncher, TaskHost
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.chaos.catalogue import plan_faults
from phalanx.launch.chaos.injector import Injector, Outcome, render_table
from phalanx.launch.chaos.network import find_obstacle, open_network
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.processes.guardian import find_run_processes
from phalanx.launch.termination import GracePeriods

PROGRAM = Path(__file__).parent.parent / "examples" / "mnist" / "train.py"
SHAPE = {"workers": 2, "ps": 1}
RECOVERY_SECONDS = 300.0
# Faults may not use up the budget of a task.
RESTARTS = 10_000
MAX_GROWTH = 1.3


def measure_self() -> tuple[float, int, int]:
    """Return the memory of this process in MB, its open files and its threads."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    memory = int(fields["VmRSS"].split()[0]) / 1024
    return memory, len(list(Path("/proc/self/fd").iterdir())), int(fields["Threads"])


def make_arguments(model_dir: str, steps: int) -> tuple[str, ...]:
    saves = ("--save-steps", "100", "--log-steps", "100")
    return ("--model-dir", model_dir, "--train-steps", str(steps), *saves)


def disturb(directory: Path, seconds: float, every: float, seed: int) -> list[Outcome]:
    """Run the job under faults for so long, and end it; stop at a fault that it does not survive.

    A scenario needs a host of its own for the tasks that it cuts off, so every trainer has one.
    """
    arguments = make_arguments(str(directory / "model"), 10**9)
    job = Job(
        "soak", Program(ProgramKind.FILE, str(PROGRAM), arguments), restarts=RESTARTS, **SHAPE
    )
    obstacle = find_obstacle()
    trainers = [task for task in job.tasks() if task.role in ("worker", "chief")]
    with (
        hold_ports(len(job.listening_tasks())) as ports,
        contextlib.nullcontext() if obstacle else open_network(trainers) as network,
    ):
        hosts = {
            task: TaskHost(network.address_of(task), network.command_of(task))
            for task in (job.all_tasks() if network else ())
        }
        launcher = LocalLauncher(
            Machine.inspect(), ports, directory / "logs", uuid.uuid4().hex,
            grace_periods=GracePeriods(60.0), progress_file=directory / "progress.json",
            hang_limit=RECOVERY_SECONDS, stop_limit=20.0, hosts=hosts,
        )  # fmt: skip
        directory.mkdir(parents=True, exist_ok=True)
        handle = launcher.submit(launcher.plan(job))
        injector = Injector(
            handle, launcher.run_id, directory / "progress.json", RECOVERY_SECONDS, every,
            lambda message: print(message, flush=True), network,
        )  # fmt: skip
        deadline = time.monotonic() + seconds
        chance = random.Random(seed)
        outcomes: list[Outcome] = []
        try:
            while time.monotonic() < deadline:
                faults = plan_faults(job.all_tasks(), [], 1, chance.randrange(2**31), obstacle)
                outcomes += injector.run(faults)
                if outcomes[-1].result != "recovered":
                    break
        finally:
            handle.cancel()
            handle.wait(120)
        left = find_run_processes(launcher.run_id)
    print(f"RESULT soak_processes_left {len(left)} goal <= 0")
    return outcomes


def finish(directory: Path, steps: int) -> float:
    """Train on to this step without faults, and return the accuracy."""
    shape = [f"--{role}={count}" for role, count in SHAPE.items()]
    arguments = make_arguments(str(directory / "model"), steps)
    subprocess.run(
        [sys.executable, "-m", "phalanx", "run", *shape, str(PROGRAM), *arguments],
        check=True, timeout=7200, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    lines = (directory / "model" / "eval" / "eval.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--every", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        before = measure_self()
        outcomes = disturb(directory / "soak", arguments.seconds, arguments.every, arguments.seed)
        after = measure_self()
        for row in render_table(outcomes):
            print("  ".join(f"{cell:14}" for cell in row))
        counts = Counter(outcome.fault.scenario.name for outcome in outcomes)
        print("faults:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        bad = [outcome for outcome in outcomes if outcome.result != "recovered"]
        print(f"RESULT soak_faults_survived {len(outcomes) - len(bad)} of {len(outcomes)}")
        print(f"RESULT soak_memory_growth {after[0] / before[0]:.2f} x goal <= {MAX_GROWTH}")
        print(f"RESULT soak_descriptors {after[1] - before[1]} more goal <= 0")
        print(f"RESULT soak_threads {after[2] - before[2]} more goal <= 0")
        if bad:
            sys.exit(f"the job did not recover: {bad[0].result}")
        progress = read_progress(directory / "soak" / "progress.json")
        steps = (progress.step if progress else 0) + 200
        disturbed, undisturbed = (
            finish(directory / "soak", steps),
            finish(directory / "calm", steps),
        )
        print(f"RESULT soak_accuracy {disturbed:.3f}, without faults {undisturbed:.3f}")
        if disturbed < undisturbed - 0.02:
            sys.exit("the faults have cost accuracy")


if __name__ == "__main__":
    main()
