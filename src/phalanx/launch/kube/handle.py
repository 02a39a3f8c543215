"""A job whose tasks are pods, whichever object made them: the kinds differ in a few facts."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.spec import Role, Task
from phalanx.errors import LaunchError
from phalanx.launch.base import JobResult, TaskState, TaskStatus, poll
from phalanx.launch.kube.client import Client, NotThereError
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.rules import describe_failure, signed_exit

INDEX = "batch.kubernetes.io/job-completion-index"
_POLL_SECONDS = 1.0
# Kubernetes takes whatever is well formed, and finds out later that it cannot be done.
_LOOK_SECONDS = 5.0
_REFUSED = re.compile(r"is forbidden|denied the request")
_NEVER = frozenset(["ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
_PHASES = {
    "Pending": TaskState.WAITING,
    "Running": TaskState.RUNNING,
    "Succeeded": TaskState.DONE,
    "Failed": TaskState.FAILED,
}

Pods = dict[Task, list[Manifest]]


@dataclass(frozen=True)
class JobKind:
    """How a kind of object tells of its job.

    `names` are its objects, of a job by its name and roles: the first tells how it has ended, the
    others why. `succeeded` is the condition that means success, `selector` finds the pods of a job
    by its name, `task_of` says which task a pod is, and `failed` who has failed for good.
    """

    kind: str
    names: Callable[[str, Iterable[Role]], list[str]]
    succeeded: str
    selector: Callable[[str], str]
    task_of: Callable[[Manifest], Task | None]
    failed: Callable[[Sequence[Manifest], Sequence[Task], Pods], list[Task]]


def one_object(name: str, roles: Iterable[Role]) -> list[str]:
    """A single object, called as the job is."""
    return [name]


def failed_pods(jobs: Sequence[Manifest], tasks: Sequence[Task], pods: Pods) -> list[Task]:
    """Who has failed, if of a job that failed the pods that had not are removed."""
    return [
        task
        for task in tasks
        if task in pods
        and pods[task][-1]["status"].get("phase") == "Failed"
        and "deletionTimestamp" not in pods[task][-1]["metadata"]
    ]


class PodsHandle:
    """A job that the cluster knows by its name."""

    def __init__(
        self,
        kind: JobKind,
        client: Client,
        name: str,
        namespace: str,
        counts: Mapping[Role, int],
        objects: Sequence[tuple[str, str]],
    ) -> None:
        self._kind = kind
        self._client = client
        self._name = name
        self._namespace = namespace
        self._tasks = [Task(role, n) for role, count in counts.items() for n in range(count)]
        self._counts = counts
        self._names = kind.names(name, counts)
        self._objects = objects

    @classmethod
    def attach(cls, kind: JobKind, facts: Mapping[str, Any]) -> PodsHandle:
        """The job with these facts."""
        return cls(
            kind,
            Client(facts["context"]),
            facts["name"],
            facts["namespace"],
            {Role(role): count for role, count in facts["counts"].items()},
            [(kind, name) for kind, name in facts["objects"]],
        )

    def facts(self) -> dict[str, Any]:
        """Where it is, its shape, and what was made for it."""
        return {
            "context": self._client.context,
            "name": self._name,
            "namespace": self._namespace,
            "counts": {str(role): count for role, count in self._counts.items()},
            "objects": [list(each) for each in self._objects],
        }

    def check_that_it_can_start(self, known: Collection[str]) -> None:
        """Raise a LaunchError if the cluster says at once that a pod cannot be made, or run.

        `known` is what it has said of an earlier job of the same name.
        """
        deadline = time.monotonic() + _LOOK_SECONDS
        while time.monotonic() < deadline:
            pods = [tries[-1] for tries in self._pods().values()]
            never = [each for each in map(_waiting_for, pods) if each.partition(":")[0] in _NEVER]
            refused = [each for each in self.complaints() if _REFUSED.search(each)]
            for reason in (*never, *(each for each in refused if each not in known)):
                raise LaunchError(f"Kubernetes does not start it: {reason}")
            placed = [pod for pod in pods if pod["status"].get("phase") != "Pending"]
            if len(placed) == len(self._tasks):
                return
            time.sleep(_POLL_SECONDS)

    def status(self) -> list[TaskStatus]:
        """Every task as its newest pod is."""
        over = self.wait(0) is not None
        pods = self._pods()
        failed = self._kind.failed(self._read_all(), self._tasks, pods)
        missing = not over and any(task not in pods for task in self._tasks)
        reason = next(reversed(self.complaints()), "") if missing else ""
        return [
            _status(task, pods.get(task, []), over, task in failed, reason) for task in self._tasks
        ]

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        """The output of the task's pods so far; with `follow`, until the job is over."""
        shown: set[str] = set()
        while True:
            over = self.wait(0) is not None
            for pod in self._pods().get(task, []):
                name = f"{pod['metadata']['name']} {_container_restarts(pod)}"
                if name not in shown and pod["status"].get("phase") != "Pending":
                    shown.add(name)
                    yield from self._client.log(pod["metadata"]["name"], self._namespace, follow)
            if over or not follow:
                return
            time.sleep(_POLL_SECONDS)

    def cancel(self) -> None:
        """Remove everything that was made; the pods get SIGTERM and their grace."""
        for kind, name in reversed(self._objects):
            self._client.delete(kind, name, self._namespace)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """How the job ended; None if it goes on after `timeout` seconds."""
        return poll(self._result, timeout, _POLL_SECONDS)

    def _result(self) -> JobResult | None:
        try:
            job = self._read(self._names[0])
        except NotThereError:
            # Removed means ended only when the pods are gone as well.
            gone = f"cancelled: its {self._kind.kind} is no longer there"
            return None if self._pods() else JobResult(1, gone)
        if _find_condition(job, self._kind.succeeded):
            return JobResult(0, "succeeded")
        return self._failure() if _find_condition(job, "Failed") else None

    def _failure(self) -> JobResult:
        """Whoever failed for good, with its last lines, or else the cluster's own words."""
        pods = self._pods()
        jobs = self._read_all()
        for task in self._kind.failed(jobs, self._tasks, pods):
            if task in pods:
                newest = pods[task][-1]
                log = self._client.log(newest["metadata"]["name"], self._namespace, follow=False)
                reason = describe_failure(task, _exit_code(newest), _count_restarts(pods[task]))
                return JobResult(1, reason, task, tuple(list(log)[-20:]))
        conditions = [_find_condition(job, "Failed") for job in jobs]
        if len(conditions) > 1 and not any(conditions[1:]):
            return self._failure_of_the_first()
        last: Mapping[str, Any] = next(filter(None, reversed(conditions)), {})
        return JobResult(1, last.get("message") or last.get("reason") or "no reason")

    def _failure_of_the_first(self) -> JobResult:
        """None of the objects with tasks has failed, but the one that was to end them."""
        selector = f"batch.kubernetes.io/job-name={self._names[0]}"
        lines = [
            line
            for pod in self._client.pods(selector, self._namespace)[-1:]
            for line in self._client.log(pod["metadata"]["name"], self._namespace, follow=False)
        ]
        said = next(reversed(lines), "nobody ends its tasks any more")
        return JobResult(1, f"{said}; what still runs goes with: phalanx cancel {self._name}")

    def complaints(self) -> list[str]:
        """Why pods cannot be made, in the cluster's words; who may not ask learns nothing."""
        # In a JobSet the Jobs have names of their own.
        names = [self._name, *self._names, *(f"{self._name}-{role}-0" for role in self._counts)]
        try:
            return self._client.complaints(names, self._namespace)
        except LaunchError:
            return []

    def _read(self, name: str) -> Manifest:
        return self._client.read(self._kind.kind, name, self._namespace)

    def _read_all(self) -> list[Manifest]:
        """Those of the job's objects that are still there."""
        found = []
        for name in self._names:
            with contextlib.suppress(NotThereError):
                found.append(self._read(name))
        return found

    def _pods(self) -> Pods:
        """The pods of each task, the newest last."""
        found: Pods = {}
        for pod in self._client.pods(self._kind.selector(self._name), self._namespace):
            task = self._kind.task_of(pod)
            if task is not None:
                found.setdefault(task, []).append(pod)
        return found


def _find_condition(job: Manifest, kind: str) -> Mapping[str, Any]:
    """A condition that is met; empty if it is not."""
    conditions: list[Mapping[str, Any]] = job.get("status", {}).get("conditions") or []
    return next(
        (each for each in conditions if (each["type"], each["status"]) == (kind, "True")), {}
    )


def _status(
    task: Task, pods: Sequence[Manifest], over: bool, failed: bool, reason: str
) -> TaskStatus:
    """The state of the newest pod; of a task without one, the reason for that."""
    if not pods:
        state = TaskState.ENDED if over else TaskState.WAITING
        return TaskStatus(task, state, last_line=reason)
    newest = pods[-1]
    state = _PHASES.get(newest["status"].get("phase"), TaskState.WAITING)
    leaving = over or "deletionTimestamp" in newest["metadata"]
    if state is not TaskState.DONE and leaving and not failed:
        state = TaskState.ENDED
    said = _waiting_for(newest) if state is TaskState.WAITING else ""
    return TaskStatus(task, state, _count_restarts(pods), _exit_code(newest), said)


def _container(pod: Manifest) -> Mapping[str, Any]:
    statuses = pod["status"].get("containerStatuses") or [{}]
    state: Mapping[str, Any] = statuses[0].get("state") or {}
    return state


def _count_restarts(pods: Sequence[Manifest]) -> int:
    """How often a task was started again, in its place or in another pod."""
    return len(pods) - 1 + sum(map(_container_restarts, pods))


def _container_restarts(pod: Manifest) -> int:
    """How often the pod's container was started again in its place."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount", 0))


def _exit_code(pod: Manifest) -> int | None:
    code: int | None = (_container(pod).get("terminated") or {}).get("exitCode")
    return None if code is None else signed_exit(code)


def _waiting_for(pod: Manifest) -> str:
    """Why a pod does not start, in the cluster's words."""
    waiting = _container(pod).get("waiting") or {}
    if waiting.get("reason"):
        return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message', '')}".rstrip(": ")
    return ""
