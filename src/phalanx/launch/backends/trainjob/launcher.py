"""The TrainJob launcher: every task is a pod of a JobSet that Kubeflow Trainer makes."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.trainjob.plan import make_objects
from phalanx.launch.job import Job
from phalanx.launch.kube.handle import INDEX, JobKind, failed_pods, one_object
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.manifest import Manifest

_PREFIX = "jobset.sigs.k8s.io"


def _selector(name: str) -> str:
    return f"{_PREFIX}/jobset-name={name}"


def _task_of(pod: Manifest) -> Task | None:
    role = pod["metadata"].get("labels", {}).get(f"{_PREFIX}/replicatedjob-name")
    index = pod["metadata"].get("annotations", {}).get(INDEX)
    return None if role is None or index is None else Task(Role(role), int(index))


class TrainJobLauncher(PodsLauncher):
    """Makes a TrainingRuntime and a TrainJob for Kubeflow Trainer."""

    kind = JobKind("TrainJob", one_object, "Complete", _selector, _task_of, failed_pods)

    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """The runtime and the TrainJob."""
        return make_objects(job, self.container, self.options)
