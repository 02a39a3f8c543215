"""Run a command of Phalanx in a process of its own, and measure the memory that it takes."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# The peak of this process alone: rusage would count that of the process that started it, too.
_PROGRAM = """
import atexit, re, sys
from phalanx.cli import main
def report(path=sys.argv.pop(1)):
    with open("/proc/self/status") as status, open(path, "w") as file:
        file.write(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1])
atexit.register(report)
main()
"""


@dataclass(frozen=True)
class Measured:
    """How a command ended, and its largest resident memory in MiB; 0 if it crashed."""

    returncode: int
    stdout: str
    stderr: str
    peak: int


def run_measured(directory: Path, *arguments: object, timeout: float = 300) -> Measured:
    peak = directory / "peak"
    peak.unlink(missing_ok=True)
    command = [sys.executable, "-c", _PROGRAM, str(peak), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout
    )
    size = int(peak.read_text()) // 1024 if peak.exists() else 0
    return Measured(done.returncode, done.stdout, done.stderr, size)
