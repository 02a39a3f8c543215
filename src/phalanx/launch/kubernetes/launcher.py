"""The Kubernetes launcher: every task is a pod of one Indexed Job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.cluster.spec import Task
from phalanx.launch.job import Job
from phalanx.launch.kubernetes.plan import make_objects
from phalanx.launch.manifest import Manifest
from phalanx.launch.pods import LABEL
from phalanx.launch.pods_handle import INDEX, JobKind, Pods
from phalanx.launch.pods_launcher import PodsLauncher


def _selector(name: str) -> str:
    return f"{LABEL}={name},phalanx.part=task"


def _task_of(pod: Manifest, tasks: Sequence[Task]) -> Task | None:
    index = pod["metadata"].get("annotations", {}).get(INDEX)
    return None if index is None else tasks[int(index)]


def _failed(job: Manifest, tasks: Sequence[Task], pods: Pods) -> list[Task]:
    """`1,3-5` in the Job's status are 1, 3, 4 and 5."""
    found: list[Task] = []
    for part in filter(None, job.get("status", {}).get("failedIndexes", "").split(",")):
        first, _, last = part.partition("-")
        found += tasks[int(first) : int(last or first) + 1]
    return found


class KubernetesLauncher(PodsLauncher):
    """Makes an Indexed Job and what it needs; Kubernetes' own controllers do the rest."""

    kind = JobKind("Job", "Complete", _selector, _task_of, _failed)

    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """The Service and the Job."""
        return make_objects(job, self.container, self.place)
