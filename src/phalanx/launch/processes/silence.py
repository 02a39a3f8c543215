"""Finds tasks that hang: they write nothing and hardly use the processor."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.launch.processes.process import TaskProcess

_CHECK_SECONDS = 1.0
# A task that uses less of a processor than this waits for something.
_IDLE_SHARE = 0.05


@dataclass
class _Activity:
    """When a task was last active, and its processor time when that was last measured."""

    last_at: float
    checked_at: float
    cpu_seconds: float


@dataclass
class SilenceWatch:
    """Measures for how long tasks have been silent, each from the first question about it."""

    _activities: dict[Task, _Activity] = field(default_factory=dict)

    def silent_seconds(self, process: TaskProcess, now: float) -> float:
        task = process.plan.task
        if task not in self._activities:
            self._activities[task] = _Activity(now, now, _read_cpu_seconds(process.processes()))
        activity = self._activities[task]
        seconds = now - activity.checked_at
        if seconds >= _CHECK_SECONDS:
            used = _read_cpu_seconds(process.processes())
            if used - activity.cpu_seconds > _IDLE_SHARE * seconds:
                activity.last_at = now
            activity.checked_at, activity.cpu_seconds = now, used
        return now - max(activity.last_at, process.last_output_at)


def _read_cpu_seconds(processes: Iterable[int]) -> float:
    ticks = 0
    for number in processes:
        try:
            stat = Path(f"/proc/{number}/stat").read_text()
        except OSError:  # It has just ended.
            continue
        # The name of the program, in brackets, may contain spaces.
        fields = stat.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
