"""The trainers of an elastic job, beside its supervisor: generations, ranks and requests."""

import os
import socket
from pathlib import Path

from phalanx.cluster.progress import read_progress
from phalanx.cluster.spec import PEERS, Role, Task
from phalanx.launch.processes.generations import Action, Generations, Start, describe_members
from phalanx.launch.processes.membership_file import (
    Membership,
    remove_membership,
    take_request,
    write_membership,
)
from phalanx.launch.processes.plan import ElasticPlan, ProcessPlan, TaskPlan
from phalanx.launch.processes.restarts import RestartPolicy, TaskFailure

_LOOK_SECONDS = 0.5


class ElasticTasks:
    """The generations of one job, and the files that show and change them.

    Args:
        plan: The plan of the job.
        elastic: The elastic part of it.
        policy: Decides about each failure.
    """

    def __init__(self, plan: ProcessPlan, elastic: ElasticPlan, policy: RestartPolicy) -> None:
        self._elastic = elastic
        self._progress_file = Path(plan.progress_file) if plan.progress_file else None
        self.servers = tuple(each.task for each in plan.tasks if each.task.role is Role.PS)
        grace = plan.grace_periods.grace
        self.generations = Generations(elastic.size, policy, grace, self.servers)
        self._ranks = {each.task: each.rank or each.task for each in plan.tasks}
        self._looked_at: float | None = None
        self._step: int | None = None
        self._write()

    @property
    def slots(self) -> tuple[Task, ...]:
        return self._elastic.size.slots

    @property
    def is_ending(self) -> bool:
        return self.generations.is_ending

    @property
    def notes(self) -> list[str]:
        """What to tell the user; whoever reads them clears the list."""
        return self.generations.notes

    def note_end(self, task: Task) -> None:
        self.generations.note_end(task)

    def note_exit(self, failure: TaskFailure, now: float) -> None:
        # The next generation depends on what this one has reported last.
        self._looked_at = None
        self.generations.note_exit(failure, now)

    def rank_of(self, task: Task) -> Task | None:
        """Return what a trainer is called in its generation; None if it is in none."""
        return self._ranks[task] if task in self.generations.members else None

    def takes(self, task: Task) -> bool:
        """Whether the generation decides about a task that has failed.

        On parameter servers the others go on without it, and it is started again alone.
        """
        if self.generations.is_ending:
            return task in self.slots or task in self.servers
        return task in self.slots and not self.servers

    def lose(self, task: Task, now: float) -> None:
        """Go on without a trainer on parameter servers."""
        self._looked_at = None
        self.generations.lose(task, now)

    def advance(self, now: float) -> Action | None:
        """Return what to do next; None for nothing."""
        if self._looked_at is None or now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._look()
        action = self.generations.advance(now, self._step)
        if isinstance(action, Start):
            self._write()
        return action

    def plan_generation(self) -> tuple[TaskPlan, ...]:
        """Return the tasks of the current generation: its trainers and parameter servers."""
        plans = self._elastic.make_tasks(self.generations.members)
        plans = tuple(each for each in plans if (each.rank or each.task).role in PEERS)
        self._ranks |= {each.task: each.rank or each.task for each in plans}
        return plans

    def describe(self) -> str:
        """Describe the current generation."""
        members = self.generations.members
        names = describe_members(members, [self._ranks[task] for task in members])
        return f"generation {self.generations.number}: {names}"

    def close(self) -> None:
        remove_membership(self._elastic.directory)

    def _look(self) -> None:
        progress = read_progress(self._progress_file) if self._progress_file else None
        if progress is not None:
            self._step, self.generations.shares = progress.step, progress.shares
        size, chiefs = self.generations.size, self._chiefs()
        possible = range(size.minimum - chiefs, len(size.slots) - chiefs + 1)
        if (workers := take_request(self._elastic.directory, possible)) is not None:
            self.generations.request(workers + chiefs)
            self._write()

    def _chiefs(self) -> int:
        return int(self.slots[0].role is Role.CHIEF)

    def _write(self) -> None:
        size, chiefs = self.generations.size, self._chiefs()
        membership = Membership(
            socket.gethostname(),
            os.getpid(),
            self.generations.number,
            tuple(map(str, self.generations.members)),
            size.minimum - chiefs,
            len(size.slots) - chiefs,
            size.wanted - chiefs,
            chiefs,
        )
        write_membership(self._elastic.directory, membership)
