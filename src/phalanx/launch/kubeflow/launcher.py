"""The Kubeflow launcher: every task is a replica of a TFJob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.spec import Role, Task
from phalanx.launch.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kubeflow.plan import plan_objects
from phalanx.launch.kubernetes_client import Client
from phalanx.launch.manifest import Manifest
from phalanx.launch.pods import ObjectsPlan, Place
from phalanx.launch.pods_handle import JobKind, Pods, PodsHandle, submit_objects

_PREFIX = "training.kubeflow.org"


@dataclass(frozen=True)
class KubeflowLauncher:
    """Makes a TFJob through the API; the rest is up to Kubeflow's training operator."""

    container: Container
    place: Place
    context: str | None = None

    def plan(self, job: Job) -> ObjectsPlan:
        """The objects that would be made."""
        return plan_objects(job, self.container, self.place)

    def submit(self, plan: ObjectsPlan) -> PodsHandle:
        """Make the objects, all or none."""
        return submit_objects(TFJOB, Client(self.context), plan)

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PodsHandle:
        """The job of this name in its namespace."""
        return PodsHandle.attach(TFJOB, facts)


def _selector(name: str) -> str:
    return f"{_PREFIX}/job-name={name}"


def _task_of(pod: Manifest, tasks: Sequence[Task]) -> Task | None:
    labels = pod["metadata"].get("labels", {})
    role, index = labels.get(f"{_PREFIX}/replica-type"), labels.get(f"{_PREFIX}/replica-index")
    return None if role is None or index is None else Task(Role.parse(role), int(index))


def _failed(job: Manifest, tasks: Sequence[Task], pods: Pods) -> list[Task]:
    """Of a job that failed, the operator removes the pods that had not."""
    return [
        task
        for task in tasks
        if task in pods
        and pods[task][-1]["status"].get("phase") == "Failed"
        and "deletionTimestamp" not in pods[task][-1]["metadata"]
    ]


TFJOB = JobKind("TFJob", "Succeeded", _selector, _task_of, _failed)
