"""The processors and GPUs of this machine, which a local plan divides among the tasks."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Machine:
    processors: int
    gpus: tuple[str, ...]
    environ: Mapping[str, str]
    python: str

    @classmethod
    def inspect(cls) -> Self:
        environ = dict(os.environ)
        return cls(
            processors=_count_processors(),
            gpus=_find_gpus(environ, Path("/dev")),
            environ=environ,
            python=sys.executable,
        )


def _count_processors(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Count the processors of this process, up to the limit of its container."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        limit = int(quota) / int(period)
    except (OSError, ValueError):
        return count
    return max(1, min(count, round(limit)))


def _find_gpus(environ: Mapping[str, str], devices: Path) -> tuple[str, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names or, if it is not set, all of them."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1"))
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return tuple(sorted((match[1] for match in numbers if match), key=int))
