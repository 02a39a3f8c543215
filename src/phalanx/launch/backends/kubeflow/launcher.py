"""The Kubeflow launcher: every task is a replica of a TFJob."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.kubeflow.plan import make_objects
from phalanx.launch.job import Job
from phalanx.launch.kube.handle import JobKind, failed_pods, one_object
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.manifest import Manifest

_PREFIX = "training.kubeflow.org"


def _selector(name: str) -> str:
    return f"{_PREFIX}/job-name={name}"


def _task_of(pod: Manifest) -> Task | None:
    labels = pod["metadata"].get("labels", {})
    role, index = labels.get(f"{_PREFIX}/replica-type"), labels.get(f"{_PREFIX}/replica-index")
    return None if role is None or index is None else Task(Role.parse(role), int(index))


class KubeflowLauncher(PodsLauncher):
    """Makes a TFJob for Kubeflow's training operator."""

    kind = JobKind("TFJob", one_object, "Succeeded", _selector, _task_of, failed_pods)

    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """The TFJob."""
        return make_objects(job, self.container, self.options)
