"""How long a job needs to recover from the loss of a task, relative to others and to its own start.

Tasks of examples/mnist/train.py are killed with SIGKILL. The time runs until the run is past the
step at which that happened. The peer of synchronous training is torchrun with a job of the same
shape in PyTorch: TORCH_PYTHON names its interpreter, by default this one. All figures are ratios of
one run on one machine.
"""

import argparse
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.progress import read_progress
from phalanx.launch.backends.local.launcher import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.backends.local.preload import find_preload
from phalanx.launch.chaos.catalogue import plan_faults
from phalanx.launch.chaos.injector import Injector
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.termination import GracePeriods

PROGRAM = Path(__file__).parent.parent / "examples" / "mnist" / "train.py"
PEER = Path(__file__).parent / "recovery_peer.py"
SECONDS = 300.0
WINDOW_SECONDS = 10.0


def wait_for(is_true: Callable[[], bool]) -> float:
    """Wait, and return how long it took."""
    started = time.monotonic()
    while not is_true():
        if time.monotonic() - started > SECONDS:
            raise SystemExit(f"nothing has happened for {SECONDS:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - started


@dataclass(frozen=True)
class Recovery:
    """How a job got over a fault.

    Attributes:
        seconds: The time from the fault to a new step.
        lost: The part of its speed that the job has lost until then.
    """

    seconds: float
    lost: float


def measure(scenarios: Sequence[str], workers: int, ps: int = 0) -> tuple[float, list[Recovery]]:
    """Return the seconds to the first step of a job, and how it got over each fault."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        arguments = ("--model-dir", f"{name}/model", "--train-steps", "1000000", "--save-steps")
        program = Program(ProgramKind.FILE, str(PROGRAM), (*arguments, "20"))
        job = Job("recovery", program, workers=workers, ps=ps, restarts=9)
        progress_file = directory / "progress.json"

        def read_step() -> int:
            progress = read_progress(progress_file)
            return progress.step if progress else 0

        recoveries = []
        with hold_ports(len(job.listening_tasks())) as ports:
            launcher = LocalLauncher(
                Machine.inspect(), ports, directory / "logs", uuid.uuid4().hex,
                grace_periods=GracePeriods(5.0), progress_file=progress_file,
                preload=find_preload(program),
            )  # fmt: skip
            handle = launcher.submit(launcher.plan(job))
            injector = Injector(
                handle, launcher.run_id, progress_file, SECONDS, 0.0, lambda message: None
            )
            try:
                start = wait_for(lambda: read_step() >= 1)
                wait_for(lambda: read_step() >= 40)
                for fault in plan_faults(job.tasks(), scenarios, 1, 0):
                    first, since = read_step(), time.monotonic()
                    time.sleep(WINDOW_SECONDS)
                    speed = (read_step() - first) / (time.monotonic() - since)
                    first, since = read_step(), time.monotonic()
                    outcome = injector.run([fault])[0]
                    passed = time.monotonic() - since
                    if outcome.new_step_after is None:
                        raise SystemExit(f"{fault.scenario.name}: {outcome.result}")
                    lost = 1 - (read_step() - first) / passed / speed
                    recoveries.append(Recovery(outcome.new_step_after, lost))
            finally:
                handle.cancel()
                handle.wait(60)
        return start, recoveries


def find_torch() -> tuple[str, str | None]:
    """Return the interpreter that has PyTorch, and why there is none, if there is none."""
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    if python == sys.executable:
        found = importlib.util.find_spec("torch") is not None
    else:
        done = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
        found = done.returncode == 0
    return python, None if found else f"{python} has no PyTorch (set TORCH_PYTHON)"


def measure_torch(python: str) -> float:
    """Return the seconds from the loss of one of two torchrun workers to a new step."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        step_file = directory / "step"

        def read_step() -> int:
            return int(step_file.read_text()) if step_file.exists() else 0

        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        process = subprocess.Popen(
            [*command, "--max-restarts", "9", str(PEER), name],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for(lambda: read_step() >= 45)
            time.sleep(WINDOW_SECONDS / 3)
            step = read_step()
            started = time.monotonic()
            os.kill(int((directory / "pid-1").read_text()), signal.SIGKILL)
            # The other worker may still write a step or two that it has made already.
            before = (directory / "pid-0").read_text()
            wait_for(lambda: (directory / "pid-0").read_text() != before)
            wait_for(lambda: read_step() > step)
            return time.monotonic() - started
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    python, obstacle = find_torch()
    sync, torch, start, ps, chief, worker = [], [], [], [], [], []
    for number in range(rounds):
        # Two trainers each: a chief and a worker.
        _, [found] = measure(["worker-killed"], workers=1)
        sync.append(found.seconds)
        if obstacle is None:
            torch.append(measure_torch(python))
        first, found_ps = measure(["ps-killed", "chief-killed", "worker-killed"], workers=2, ps=1)
        start.append(first)
        ps.append(found_ps[0].seconds)
        chief.append(found_ps[1].seconds)
        worker.append(found_ps[2].lost)
        print(
            f"round {number + 1}: all-reduce {sync[-1]:.1f} s"
            + (f", torchrun {torch[-1]:.1f} s" if torch else "")
            + f", start {start[-1]:.1f} s, ps {ps[-1]:.1f} s, chief {chief[-1]:.1f} s, "
            f"speed lost with a worker {worker[-1]:.2f}",
            flush=True,
        )
    cold = statistics.median(start)
    if obstacle is None:
        ratio = statistics.median(a / b for a, b in zip(sync, torch, strict=True))
        print(f"RESULT recovery_all_reduce_vs_torchrun {ratio:.2f} x goal <= 1.0")
    else:
        print(f"SKIPPED recovery_all_reduce_vs_torchrun: {obstacle}")
    print(f"RESULT recovery_all_reduce {statistics.median(sync):.1f} s")
    print(f"RESULT recovery_ps_vs_start {statistics.median(ps) / cold:.2f} x goal <= 1.3")
    print(f"RESULT recovery_chief_vs_start {statistics.median(chief) / cold:.2f} x goal <= 1.5")
    share = statistics.median(worker) / (1 / 3)
    print(f"RESULT recovery_worker_speed_lost_vs_share {share:.2f} x goal <= 1.0")


if __name__ == "__main__":
    main()
