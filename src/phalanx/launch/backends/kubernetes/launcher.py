"""The Kubernetes launcher: every task is a pod of its role's Indexed Job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.kubernetes.plan import job_names, make_objects
from phalanx.launch.job import Job
from phalanx.launch.kube.handle import INDEX, JobKind, Pods
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.pods import LABEL, ROLE


def _selector(name: str) -> str:
    return f"{LABEL}={name},phalanx.part=task"


def _task_of(pod: Manifest) -> Task | None:
    role = pod["metadata"].get("labels", {}).get(ROLE)
    index = pod["metadata"].get("annotations", {}).get(INDEX)
    return None if role is None or index is None else Task(Role(role), int(index))


def _failed(jobs: Sequence[Manifest], tasks: Sequence[Task], pods: Pods) -> list[Task]:
    """`1,3-5` in a Job's status are 1, 3, 4 and 5."""
    found: list[Task] = []
    for job in jobs:
        role = job["spec"]["template"]["metadata"]["labels"].get(ROLE)
        for part in filter(None, job.get("status", {}).get("failedIndexes", "").split(",")):
            first, _, last = part.partition("-")
            found += [Task(Role(role), n) for n in range(int(first), int(last or first) + 1)]
    return found


class KubernetesLauncher(PodsLauncher):
    """Makes an Indexed Job for each role; Kubernetes' own controllers do the rest."""

    kind = JobKind("Job", job_names, "Complete", _selector, _task_of, _failed)

    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """The Service, the Jobs, and who ends them together."""
        return make_objects(job, self.container, self.options)
