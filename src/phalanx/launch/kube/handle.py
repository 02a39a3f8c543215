"""A job whose tasks are pods. The kinds of objects that create the pods differ in a few facts."""

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from phalanx.cluster.spec import Role, Task
from phalanx.errors import LaunchError, NotFoundError, OutputGoneError
from phalanx.launch.base import JobResult, TaskState, TaskStatus, poll
from phalanx.launch.job import make_tasks
from phalanx.launch.kube.client import Client
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import QUEUE
from phalanx.launch.kube.watch import JobWatch, Snapshot
from phalanx.launch.termination import decode_exit_code, describe_failure

INDEX = "batch.kubernetes.io/job-completion-index"
_POLL_SECONDS = 1.0
# Kubernetes accepts every well-formed object, and reports only later that it cannot run it.
_START_SECONDS = 5.0
# While pods are missing, how often the API is asked for the reason.
_REASON_SECONDS = 10.0
# Changes that come together are reported together.
_BURST_SECONDS = 0.5
# An operator that has not touched its object after this time does not run.
_OPERATOR_SECONDS = 60.0
_REFUSED = re.compile(r"is forbidden|denied the request")
_START_ERRORS = frozenset(
    [
        # A Secret or a key of it does not exist.
        "CreateContainerConfigError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
    ]
)
_STATES = {
    "Pending": TaskState.WAITING,
    "Running": TaskState.RUNNING,
    "Succeeded": TaskState.DONE,
    "Failed": TaskState.FAILED,
}

Pods = dict[Task, list[Manifest]]


@dataclass(frozen=True)
class JobKind:
    """How a kind of object represents a job.

    `names` are the objects of a job, of which the first says whether it has ended and the others
    why; `succeeded` is the condition that means success; `selector`, followed by the job's name,
    selects its pods; `failed` are the tasks that have failed for the last time; `operator` is the
    name of the operator that creates the pods, if Kubernetes itself does not; `oldest` is the
    oldest version of Kubernetes that has what the objects need.
    """

    kind: str
    names: Callable[[str, Iterable[Role]], list[str]]
    succeeded: str
    selector: str
    task_of: Callable[[Manifest], Task | None]
    failed: Callable[[Sequence[Manifest], Sequence[Task], Pods], list[Task]]
    operator: str = ""
    oldest: tuple[int, int] = (1, 0)


def one_object(name: str, roles: Iterable[Role]) -> list[str]:
    """Return the `names` of a kind that has a single object, with the job's name."""
    return [name]


def failed_pods(jobs: Sequence[Manifest], tasks: Sequence[Task], pods: Pods) -> list[Task]:
    """Return the `failed` tasks of a kind whose controller deletes all other pods on failure."""
    return [
        task
        for task in tasks
        if task in pods
        and pods[task][-1]["status"].get("phase") == "Failed"
        and "deletionTimestamp" not in pods[task][-1]["metadata"]
    ]


@dataclass(frozen=True)
class PodsHandle:
    """A submitted job, which the cluster knows by its name."""

    kind: JobKind
    client: Client
    name: str
    namespace: str
    counts: Mapping[Role, int]
    objects: Sequence[tuple[str, str]]
    _watch: JobWatch = field(default_factory=JobWatch, compare=False, repr=False)

    @classmethod
    def attach(cls, kind: JobKind, facts: Mapping[str, Any]) -> Self:
        return cls(
            kind,
            Client(facts["context"]),
            facts["name"],
            facts["namespace"],
            {Role(role): count for role, count in facts["counts"].items()},
            [(kind, name) for kind, name in facts["objects"]],
        )

    def facts(self) -> dict[str, Any]:
        return {
            "context": self.client.context,
            "name": self.name,
            "namespace": self.namespace,
            "counts": {str(role): count for role, count in self.counts.items()},
            "objects": [list(each) for each in self.objects],
        }

    def check_start(self, known: Collection[str]) -> None:
        """Raise a LaunchError for a pod that cannot run; `known` are warnings of earlier jobs."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            pods = [tries[-1] for tries in self._pods().values()]
            waiting = map(_waiting_reason, pods)
            reasons = [each for each in waiting if each.partition(":")[0] in _START_ERRORS]
            refused = [each for each in self.warnings() if _REFUSED.search(each)]
            for reason in (*reasons, *(each for each in refused if each not in known)):
                raise LaunchError(f"Kubernetes does not start it: {reason}")
            started = [pod for pod in pods if pod["status"].get("phase") != "Pending"]
            # TensorBoard's pod is created through a ReplicaSet, perhaps later than all others.
            later = any(kind == "Deployment" for kind, _ in self.objects)
            if len(started) == len(make_tasks(self.counts)) and not later:
                return
            time.sleep(_POLL_SECONDS)

    def status(self) -> list[TaskStatus]:
        over = self.wait(0) is not None
        tasks, pods = make_tasks(self.counts), self._pods()
        jobs = self._read_all()
        failed = self.kind.failed(jobs, tasks, pods)
        missing = not over and any(task not in pods for task in tasks)
        reason = self._missing_reason(jobs) if missing else ""
        return [_status(task, pods.get(task, []), over, task in failed, reason) for task in tasks]

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        shown: set[str] = set()
        for snapshot in self._follow() if follow else [self._look()]:
            pods = self._group(snapshot.pods).get(task, [])
            for pod in pods:
                name = f"{pod['metadata']['name']} {_container_restarts(pod)}"
                if name in shown or pod["status"].get("phase") == "Pending":
                    continue
                # A pod can be deleted between the list and this request.
                with contextlib.suppress(NotFoundError):
                    pod_name, goes_on = pod["metadata"]["name"], follow and not snapshot.over
                    yield from self.client.log(pod_name, self.namespace, goes_on)
                    shown.add(name)
            if snapshot.over and not shown and not pods:
                raise OutputGoneError(
                    f"the output of {task} is gone: Kubernetes deletes the output of a pod with "
                    "the pod, when the job ends a task that still runs; --follow shows it all"
                )

    def reports(self) -> Iterator[str]:
        """Yield why tasks wait, whenever there is a new reason, until the job is over."""
        said: set[str] = set()
        for snapshot in self._follow(_REASON_SECONDS):
            if snapshot.over:
                return
            waiting = self._find_waiting(self._group(snapshot.pods))
            for reason, tasks in waiting.items():
                if reason not in said:
                    said.add(reason)
                    yield f"{_name_tasks(tasks)}: {reason}"
            if said and not waiting:
                said.clear()
                yield "all tasks have started"
            time.sleep(_BURST_SECONDS)

    def _find_waiting(self, pods: Pods) -> dict[str, list[Task]]:
        """Return the tasks that do not start, by the reason; those without a reason are new."""
        found: dict[str, list[Task]] = {}
        missing = [task for task in make_tasks(self.counts) if task not in pods]
        if missing and (reason := self._missing_reason(self._read_all())):
            found[reason] = missing
        for task, tries in pods.items():
            if tries[-1]["status"].get("phase") == "Pending" and (
                reason := _waiting_reason(tries[-1])
            ):
                found.setdefault(reason, []).append(task)
        return found

    def _follow(self, every: float | None = None) -> Iterator[Snapshot]:
        selector = self.kind.selector + self.name
        return self._watch.snapshots(self.client, selector, self.namespace, self._result, every)

    def _look(self) -> Snapshot:
        over = self.wait(0) is not None
        pods = self.client.pods(self.kind.selector + self.name, self.namespace)
        return Snapshot(tuple(pods), over)

    def cancel(self) -> None:
        """Delete every object of the job; the pods get SIGTERM and their grace period."""
        for kind, name in reversed(self.objects):
            self.client.delete(kind, name, self.namespace)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        return poll(self._result, timeout, _POLL_SECONDS)

    def _result(self) -> JobResult | None:
        try:
            job = self._read(self._names()[0])
        except NotFoundError:
            # A deleted job has ended only when its pods are gone as well.
            gone = (
                f"its {self.kind.kind} is no longer there: the job was cancelled, or it ended "
                "longer ago than --ttl"
            )
            return None if self._pods() else JobResult(1, gone)
        if _find_condition(job, self.kind.succeeded):
            return JobResult(0, "succeeded")
        return self._failure() if _find_condition(job, "Failed") else None

    def _failure(self) -> JobResult:
        pods = self._pods()
        jobs = self._read_all()
        failed = self.kind.failed(jobs, make_tasks(self.counts), pods)
        for task in sorted(failed, key=lambda each: each not in pods):
            if task not in pods:
                return JobResult(1, f"{task} failed, and its pod has been deleted since", task)
            reason = describe_failure(task, _exit_code(pods[task][-1]), _count_restarts(pods[task]))
            return JobResult(1, reason, task, tuple(self._log(pods[task][-1])[-20:]))
        conditions = [_find_condition(job, "Failed") for job in jobs]
        if len(conditions) > 1 and not any(conditions[1:]):
            return self._controller_failure()
        last: Manifest = next(filter(None, reversed(conditions)), {})
        return JobResult(1, last.get("message") or last.get("reason") or "no reason")

    def _controller_failure(self) -> JobResult:
        """Return the last line of the job controller's pod: no object with tasks has failed."""
        selector = f"batch.kubernetes.io/job-name={self._names()[0]}"
        pods = self.client.pods(selector, self.namespace)[-1:]
        lines = [line for pod in pods for line in self._log(pod)]
        reason = next(reversed(lines), "the job controller has failed")
        return JobResult(1, f"{reason}; end the tasks that still run: phalanx cancel {self.name}")

    def _log(self, pod: Manifest) -> list[str]:
        return list(self.client.log(pod["metadata"]["name"], self.namespace, follow=False))

    def warnings(self) -> list[str]:
        """Return why pods cannot be created; nothing if this user may not read events."""
        # The Jobs of a JobSet have names of their own.
        names = [self.name, *self._names(), *(f"{self.name}-{role}-0" for role in self.counts)]
        names += [f"{name}-" for kind, name in self.objects if kind == "Deployment"]
        try:
            return self.client.warnings(names, self.namespace)
        except LaunchError:
            return []

    def _missing_reason(self, jobs: Sequence[Manifest]) -> str:
        """Return why tasks have no pods, if it is known."""
        if warnings := self.warnings():
            return warnings[-1]
        for job in filter(_is_suspended, jobs):
            if queue := job["metadata"].get("labels", {}).get(QUEUE):
                return f"suspended until Kueue admits the job to its queue {queue}"
        for job in jobs[:1]:
            age = _age(job)
            if self.kind.operator and not job.get("status") and age > _OPERATOR_SECONDS:
                return (
                    f"{self.kind.operator} has not touched the {self.kind.kind} for {age:.0f} s: "
                    "it does not seem to run in this cluster"
                )
        return ""

    def _names(self) -> list[str]:
        return self.kind.names(self.name, self.counts)

    def _read(self, name: str) -> Manifest:
        return self.client.read(self.kind.kind, name, self.namespace)

    def _read_all(self) -> list[Manifest]:
        found = []
        for name in self._names():
            with contextlib.suppress(NotFoundError):
                found.append(self._read(name))
        return found

    def _pods(self) -> Pods:
        return self._group(self.client.pods(self.kind.selector + self.name, self.namespace))

    def _group(self, pods: Iterable[Manifest]) -> Pods:
        """Return the pods of each task, the newest last."""
        found: Pods = {}
        for pod in pods:
            task = self.kind.task_of(pod)
            if task is not None:
                found.setdefault(task, []).append(pod)
        return found


def _find_condition(job: Manifest, kind: str) -> Manifest:
    """Return a condition whose status is true, or an empty one."""
    conditions: list[Manifest] = job.get("status", {}).get("conditions") or []
    return next(
        (each for each in conditions if (each["type"], each["status"]) == (kind, "True")), {}
    )


def _status(
    task: Task, pods: Sequence[Manifest], over: bool, failed: bool, reason: str
) -> TaskStatus:
    """Return the state of the newest pod, or the reason why there is none."""
    if not pods:
        state = TaskState.ENDED if over else TaskState.WAITING
        return TaskStatus(task, state, last_line=reason)
    newest = pods[-1]
    state = _STATES.get(newest["status"].get("phase"), TaskState.WAITING)
    # A pod that runs although the job is over was not ended: the job controller has failed.
    leaving = (over and state is not TaskState.RUNNING) or "deletionTimestamp" in newest["metadata"]
    if state is not TaskState.DONE and leaving and not failed:
        state = TaskState.ENDED
    waiting = _waiting_reason(newest) if state is TaskState.WAITING else ""
    return TaskStatus(task, state, _count_restarts(pods), _exit_code(newest), waiting)


def _is_suspended(job: Manifest) -> bool:
    spec = job.get("spec", {})
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _age(job: Manifest) -> float:
    """Return how many seconds ago an object was created; 0 if that is unknown."""
    try:
        created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    except (KeyError, ValueError):
        return 0.0
    return (datetime.now(UTC) - created).total_seconds()


def _name_tasks(tasks: Sequence[Task]) -> str:
    names = ", ".join(map(str, tasks[:3]))
    more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
    return f"{names}{more} {'waits' if len(tasks) == 1 else 'wait'}"


def _container_status(pod: Manifest) -> Manifest:
    statuses: list[Manifest] = pod["status"].get("containerStatuses") or [{}]
    return statuses[0]


def _count_restarts(pods: Sequence[Manifest]) -> int:
    return len(pods) - 1 + sum(map(_container_restarts, pods))


def _container_restarts(pod: Manifest) -> int:
    return int(_container_status(pod).get("restartCount", 0))


def _exit_code(pod: Manifest) -> int | None:
    state = _container_status(pod).get("state") or {}
    code: int | None = (state.get("terminated") or {}).get("exitCode")
    return None if code is None else decode_exit_code(code)


def _waiting_reason(pod: Manifest) -> str:
    """Return why a pod does not start, in the cluster's words."""
    waiting = (_container_status(pod).get("state") or {}).get("waiting") or {}
    conditions = [
        each
        for each in pod["status"].get("conditions") or []
        if each["type"] == "PodScheduled" and each["status"] == "False"
    ]
    found = waiting if waiting.get("reason") else next(iter(conditions), None)
    return f"{found.get('reason')}: {found.get('message', '')}".rstrip(": ") if found else ""
