"""The Kubernetes launcher: every task is a pod of one Indexed Job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.launch.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kubernetes.plan import plan_objects
from phalanx.launch.kubernetes_client import Client
from phalanx.launch.manifest import Manifest
from phalanx.launch.pods import LABEL, ObjectsPlan, Place
from phalanx.launch.pods_handle import JobKind, Pods, PodsHandle, submit_objects

_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class KubernetesLauncher:
    """Makes the objects of a job through the API; the rest is up to Kubernetes' own controllers."""

    container: Container
    place: Place
    context: str | None = None

    def plan(self, job: Job) -> ObjectsPlan:
        """The objects that would be made."""
        return plan_objects(job, self.container, self.place)

    def submit(self, plan: ObjectsPlan) -> PodsHandle:
        """Make the objects, all or none."""
        return submit_objects(INDEXED_JOB, Client(self.context), plan)

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PodsHandle:
        """The job of this name in its namespace."""
        return PodsHandle.attach(INDEXED_JOB, facts)


def _selector(name: str) -> str:
    return f"{LABEL}={name},phalanx.part=task"


def _task_of(pod: Manifest, tasks: Sequence[Task]) -> Task | None:
    index = pod["metadata"].get("annotations", {}).get(_INDEX)
    return None if index is None else tasks[int(index)]


def _failed(job: Manifest, tasks: Sequence[Task], pods: Pods) -> list[Task]:
    """`1,3-5` in the Job's status are 1, 3, 4 and 5."""
    found: list[Task] = []
    for part in filter(None, job.get("status", {}).get("failedIndexes", "").split(",")):
        first, _, last = part.partition("-")
        found += tasks[int(first) : int(last or first) + 1]
    return found


INDEXED_JOB = JobKind("Job", "Complete", _selector, _task_of, _failed)
