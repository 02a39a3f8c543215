"""A hook, a detector and a launcher for Phalanx, in a package of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.job import Job

if TYPE_CHECKING:
    from phalanx import RunConfig, hooks


def count_saves(config: RunConfig) -> hooks.Hook:
    """Return the hook that `--hooks count-saves` adds to a run."""
    # TensorFlow is imported only if the hook is used.
    from phalanx import hooks  # noqa: PLC0415

    class Counter(hooks.Hook):
        saves = 0

        def on_save(self, session: Any, path: str) -> None:
            self.saves += 1

        def end(self, session: Any) -> None:
            print(f"{self.saves} checkpoints in {config.model_dir}")

    return Counter()


def detect_rank(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Find the task of a process in RANK and PEERS, as in RANK=0 PEERS=a:2222,b:2222."""
    if "RANK" not in environ or "PEERS" not in environ:
        return None
    cluster = Cluster.of(workers=environ["PEERS"].split(","))
    return TFConfig(cluster, Task(Role.WORKER, int(environ["RANK"])))


@dataclass(frozen=True)
class PrintPlan:
    lines: tuple[str, ...]

    def render(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


class PrintLauncher:
    """Prints the commands of a job instead of running them: `phalanx launch print`."""

    def plan(self, job: Job) -> PrintPlan:
        command = " ".join(job.program.command("python3"))
        return PrintPlan(tuple(f"{task}: {command}" for task in job.tasks()))

    def submit(self, plan: PrintPlan) -> PrintHandle:
        print(plan.render(), end="")
        return PrintHandle()

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PrintHandle:
        return PrintHandle()


class PrintHandle:
    """A job that is over as soon as it is printed."""

    def facts(self) -> dict[str, Any]:
        return {}

    def status(self) -> list[TaskStatus]:
        return [TaskStatus(Task(Role.CHIEF), TaskState.DONE, exit_code=0)]

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        return iter(())

    def cancel(self) -> None:
        """There is nothing to cancel."""

    def wait(self, timeout: float | None = None) -> JobResult:
        return JobResult(0, "succeeded")
