"""Finds tasks that hang: those that a signal has stopped, and runs without progress."""

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.cluster.progress import read_progress
from phalanx.launch.processes.guardian import list_processes

DUMP_SIGNAL = signal.SIGUSR2
"""Training processes write the stacks of their threads when they receive it."""
_CHECK_SECONDS = 1.0


@dataclass
class StopWatch:
    """Measures for how long process groups have been stopped, as SIGSTOP does."""

    _stopped: dict[int, float] = field(default_factory=dict)
    _checked_at: float | None = None

    def stopped_seconds(self, now: float) -> dict[int, float]:
        """Return the stopped process groups, and for how long they have been stopped."""
        passed = _CHECK_SECONDS if self._checked_at is None else now - self._checked_at
        if passed >= _CHECK_SECONDS:
            self._checked_at = now
            groups = {group for _, group, state in list_processes() if state == "T"}
            # If this process was stopped itself, that time does not count.
            passed = min(passed, 5 * _CHECK_SECONDS)
            self._stopped = {
                group: self._stopped[group] + passed if group in self._stopped else 0.0
                for group in groups
            }
        return self._stopped


@dataclass
class ProgressWatch:
    """Measures for how long the chief of a run has reported no step, while it trains."""

    path: Path
    _step: int | None = None
    _changed_at: float | None = None
    _checked_at: float = 0.0

    def idle_seconds(self, now: float) -> float:
        """Return for how long the step has not changed; 0 while nothing is expected to change."""
        if self._changed_at is None or now - self._checked_at >= _CHECK_SECONDS:
            # If this process was stopped itself, that time does not count.
            paused = now - self._checked_at > 60 * _CHECK_SECONDS
            self._checked_at = now
            progress = read_progress(self.path)
            step = progress.step if progress and progress.activity == "training" else None
            if step is None or step != self._step or self._changed_at is None or paused:
                self._step, self._changed_at = step, now
        return now - self._changed_at

    def restart(self) -> None:
        """Count from now on again."""
        self._changed_at = None

    def read_step(self) -> int | None:
        """Return the last step that the chief has reported."""
        progress = read_progress(self.path)
        return progress.step if progress else None


def dump_stacks(pids: Iterable[int]) -> bool:
    """Ask processes for the stacks of their threads, if they have a handler for that signal."""
    asked = False
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            status = Path(f"/proc/{pid}/status").read_text()
            caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
            if int(caught.split()[1], 16) >> (DUMP_SIGNAL - 1) & 1:
                os.kill(pid, DUMP_SIGNAL)
                asked = True
    return asked
