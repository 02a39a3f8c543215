"""Time from `phalanx run` to the first step (chief, 2 workers, 1 ps), and of the bare imports."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
EXAMPLE = Path(__file__).parent.parent / "examples" / "mnist" / "train.py"


def time_import() -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import tensorflow, keras"], check=True, capture_output=True
    )
    return time.perf_counter() - started


def time_first_step() -> float:
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable, "-m", "phalanx", "run", "--workers", "2", "--ps", "1",
            str(EXAMPLE), "--model-dir", directory, "--train-steps", "3", "--log-steps", "1",
        ]  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        seconds = 0.0
        for line in process.stdout:
            if "step 1" in line and not seconds:
                seconds = time.perf_counter() - started
        process.wait(60)
        if process.returncode or not seconds:
            raise SystemExit(f"the run failed: {' '.join(command)}")
        return seconds


def main() -> None:
    imports, steps = [], []
    for _ in range(ROUNDS):
        imports.append(time_import())
        steps.append(time_first_step())
    print(f"import of TensorFlow and Keras  {statistics.median(imports):5.1f} s")
    print(f"phalanx run to the first step   {statistics.median(steps):5.1f} s")


if __name__ == "__main__":
    main()
