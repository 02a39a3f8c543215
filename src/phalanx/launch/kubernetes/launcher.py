"""The Kubernetes launcher: every task is a pod of one Indexed Job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError, LaunchError
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kubernetes.client import Client, NotThereError
from phalanx.launch.kubernetes.plan import LABEL, KubernetesPlan, Place, plan_objects
from phalanx.launch.manifest import Manifest

_POLL_SECONDS = 1.0
_INDEX = "batch.kubernetes.io/job-completion-index"
_PHASES = {
    "Pending": TaskState.WAITING,
    "Running": TaskState.RUNNING,
    "Succeeded": TaskState.DONE,
    "Failed": TaskState.FAILED,
}


@dataclass(frozen=True)
class KubernetesLauncher:
    """Makes the objects of a job through the API; the rest is up to Kubernetes' own controllers."""

    container: Container
    place: Place
    context: str | None = None

    def plan(self, job: Job) -> KubernetesPlan:
        """The objects that would be made."""
        return plan_objects(job, self.container, self.place)

    def submit(self, plan: KubernetesPlan) -> KubernetesHandle:
        """Make the objects; if one cannot be made, those before it are removed."""
        client = Client(self.context)
        made: list[tuple[str, str]] = []
        for manifest in plan.objects:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            try:
                client.create(manifest)
            except LaunchError as error:
                for other in reversed(made):
                    client.delete(*other, plan.namespace)
                raise JobError(f"nothing was submitted: {kind} {name}: {error}") from None
            made.append((kind, name))
        return KubernetesHandle(client, plan.name, plan.namespace, dict(plan.counts), made)

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> KubernetesHandle:
        """The job of this name in its namespace."""
        return KubernetesHandle(
            Client(facts["context"]),
            facts["name"],
            facts["namespace"],
            {Role(role): count for role, count in facts["counts"].items()},
            [(kind, name) for kind, name in facts["objects"]],
        )


class KubernetesHandle:
    """A job that the cluster knows by its name."""

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        counts: Mapping[Role, int],
        objects: Sequence[tuple[str, str]],
    ) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._counts = counts
        self._objects = objects

    def facts(self) -> dict[str, Any]:
        """Where it is, its shape, and what was made for it."""
        return {
            "context": self._client.context,
            "name": self._name,
            "namespace": self._namespace,
            "counts": {str(role): count for role, count in self._counts.items()},
            "objects": [list(each) for each in self._objects],
        }

    def status(self) -> list[TaskStatus]:
        """Every task as its newest pod is."""
        over = self.wait(0) is not None
        try:
            failed = _failed_indexes(self._client.job(self._name, self._namespace))
        except NotThereError:
            failed = []
        by_index = self._pods()
        return [
            _status(task, by_index.get(number, []), over, number in failed)
            for number, task in enumerate(self._tasks())
        ]

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        """The output of the task's pods so far; with `follow`, until the job is over."""
        number = self._tasks().index(task)
        shown: set[str] = set()
        while True:
            over = self.wait(0) is not None
            for pod in self._pods().get(number, []):
                name = pod["metadata"]["name"]
                if name not in shown and pod["status"].get("phase") != "Pending":
                    shown.add(name)
                    yield from self._client.log(name, self._namespace, follow)
            if over or not follow:
                return
            time.sleep(_POLL_SECONDS)

    def cancel(self) -> None:
        """Remove everything that was made; the pods get SIGTERM and their grace."""
        for kind, name in reversed(self._objects):
            self._client.delete(kind, name, self._namespace)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """How the job ended; None if it goes on after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            result = self._result()
            if result is not None:
                return result
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)

    def _result(self) -> JobResult | None:
        try:
            job = self._client.job(self._name, self._namespace)
        except NotThereError:
            # Removed means ended only when the pods are gone as well.
            return None if self._pods() else JobResult(1, "cancelled: its Job is no longer there")
        for condition in job.get("status", {}).get("conditions") or []:
            if condition["status"] == "True" and condition["type"] == "Complete":
                return JobResult(0, "succeeded")
            if condition["status"] == "True" and condition["type"] == "Failed":
                return self._failure(job, condition)
        return None

    def _failure(self, job: Manifest, condition: Mapping[str, Any]) -> JobResult:
        """Whoever failed for good, with its last lines, or else the cluster's own words."""
        tasks, pods = self._tasks(), self._pods()
        for number in _failed_indexes(job):
            if number in pods:
                newest = pods[number][-1]
                log = self._client.log(newest["metadata"]["name"], self._namespace, follow=False)
                reason = f"{tasks[number]} failed with exit code {_exit_code(newest)}"
                return JobResult(1, reason, tasks[number], tuple(list(log)[-20:]))
        return JobResult(1, condition.get("message") or condition.get("reason") or "no reason")

    def _tasks(self) -> list[Task]:
        return [Task(role, index) for role, count in self._counts.items() for index in range(count)]

    def _pods(self) -> dict[int, list[Manifest]]:
        """The pods of each index, the newest last."""
        found: dict[int, list[Manifest]] = {}
        selector = f"{LABEL}={self._name},phalanx.part=task"
        for pod in self._client.pods(selector, self._namespace):
            index = pod["metadata"].get("annotations", {}).get(_INDEX)
            if index is not None:
                found.setdefault(int(index), []).append(pod)
        return found


def _failed_indexes(job: Manifest) -> list[int]:
    """`1,3-5` in the Job's status are 1, 3, 4 and 5."""
    found: list[int] = []
    for part in filter(None, job.get("status", {}).get("failedIndexes", "").split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _status(task: Task, pods: Sequence[Manifest], over: bool, failed: bool) -> TaskStatus:
    if not pods:
        return TaskStatus(task, TaskState.ENDED if over else TaskState.WAITING)
    newest = pods[-1]
    state = _PHASES.get(newest["status"].get("phase"), TaskState.WAITING)
    leaving = over or "deletionTimestamp" in newest["metadata"]
    if state is not TaskState.DONE and leaving and not failed:
        state = TaskState.ENDED
    said = _waiting_for(newest) if state is TaskState.WAITING else ""
    return TaskStatus(task, state, len(pods) - 1, _exit_code(newest), said)


def _container(pod: Manifest) -> Mapping[str, Any]:
    statuses = pod["status"].get("containerStatuses") or [{}]
    state: Mapping[str, Any] = statuses[0].get("state") or {}
    return state


def _exit_code(pod: Manifest) -> int | None:
    code: int | None = (_container(pod).get("terminated") or {}).get("exitCode")
    return code


def _waiting_for(pod: Manifest) -> str:
    """Why a pod does not start, in the cluster's words."""
    waiting = _container(pod).get("waiting") or {}
    if waiting.get("reason"):
        return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message', '')}".rstrip(": ")
    return ""
