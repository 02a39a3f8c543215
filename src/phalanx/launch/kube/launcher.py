"""What the launchers whose tasks are pods share: all but the objects that make the pods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from phalanx.errors import JobError, LaunchError
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import make_container
from phalanx.launch.job import Job
from phalanx.launch.kube.client import Client, TakenError
from phalanx.launch.kube.handle import JobKind, PodsHandle
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PODS, make_pod_options
from phalanx.launch.kube.patch import apply_patches
from phalanx.launch.kube.pods import (
    ObjectsPlan,
    PodOptions,
    make_credentials,
    make_disruption_budget,
    make_network_policy,
    make_tensorboard,
)
from phalanx.launch.options import Option, OptionValues

_END_SECONDS = 60.0


@dataclass(frozen=True)
class PodsLauncher(ABC):
    """Makes the objects of a job through the API; the rest is up to the cluster's controllers."""

    container: Container
    place: PodOptions
    context: str | None = None

    kind: ClassVar[JobKind]
    launch_options: ClassVar[tuple[Option, ...]] = PODS

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        return cls(make_container(values), make_pod_options(values), values["context"])

    @abstractmethod
    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """The objects that make the pods."""

    def plan(self, job: Job) -> ObjectsPlan:
        """The objects that would be made, in their order."""
        job.validate()
        self.container.validate()
        about = (job, self.container, self.place)
        objects = [
            *make_credentials(*about),
            make_network_policy(*about),
            *make_disruption_budget(*about),
            *self.make_objects(job),
            *make_tensorboard(*about),
        ]
        patched = apply_patches(objects, self.place.patches)
        counts = tuple(job.all_counts().items())
        return ObjectsPlan(job.name, self.place.namespace, patched, counts)

    def submit(self, plan: ObjectsPlan) -> PodsHandle:
        """Make the objects, all or none."""
        return _submit(self.kind, Client(self.context), plan)

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PodsHandle:
        """The job of this name in its namespace."""
        return PodsHandle.attach(cls.kind, facts)


def _submit(kind: JobKind, client: Client, plan: ObjectsPlan) -> PodsHandle:
    """Make the objects; if one cannot be made, or no pod of them, all are removed."""
    made: list[tuple[str, str]] = []
    handle = PodsHandle(kind, client, plan.name, plan.namespace, dict(plan.counts), made)
    known = handle.complaints()
    try:
        for manifest in plan.objects:
            _create(client, manifest, plan.name)
            made.append((manifest["kind"], manifest["metadata"]["name"]))
        handle.check_that_it_can_start(known)
    except BaseException as error:
        handle.cancel()
        if len(made) == len(plan.objects):
            handle.wait(_END_SECONDS)
        if isinstance(error, LaunchError):
            raise JobError(f"nothing was submitted: {error}") from None
        raise
    return handle


def _create(client: Client, manifest: Manifest, job: str) -> None:
    """Make an object; why it cannot be made is said with its name."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    try:
        client.create(manifest)
    except LaunchError as error:
        raise LaunchError(f"{kind} {name}: {error}{_hint(error, job, kind)}") from None


def _hint(error: LaunchError, name: str, kind: str) -> str:
    """What to do about it, if that is known."""
    if isinstance(error, TakenError):
        return f" (an earlier job's goes with: phalanx cancel {name})"
    if kind in ("Role", "RoleBinding", "ServiceAccount"):
        return " (name an account that may get and patch Jobs: --controller-account)"
    return ""
