"""The base class of the launchers whose tasks are pods; they differ in the objects they create."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from phalanx.errors import JobError, LaunchError
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import make_container
from phalanx.launch.job import Job
from phalanx.launch.kube.client import AlreadyExistsError, Client
from phalanx.launch.kube.handle import JobKind, PodsHandle
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PODS, make_pod_options
from phalanx.launch.kube.patch import apply_patches
from phalanx.launch.kube.pods import (
    LABEL,
    ObjectsPlan,
    PodOptions,
    make_disruption_budget,
    make_network_policy,
    make_secret,
    make_tensorboard,
)
from phalanx.launch.options import Option, OptionValues

_END_SECONDS = 60.0


@dataclass(frozen=True)
class PodsLauncher(ABC):
    """Creates the objects of a job through the API; the cluster's controllers do the rest."""

    container: Container
    options: PodOptions
    context: str | None = None

    kind: ClassVar[JobKind]
    launch_options: ClassVar[tuple[Option, ...]] = PODS

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        return cls(make_container(values), make_pod_options(values), values["context"])

    @abstractmethod
    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """Make the objects that create the pods."""

    def plan(self, job: Job) -> ObjectsPlan:
        job.validate()
        self.container.validate()
        labels = {**self.container.labels, LABEL: job.name}
        about = (job, self.container, self.options)
        objects = [
            *make_secret(job.name, labels, self.options),
            make_network_policy(*about),
            *make_disruption_budget(*about),
            *self.make_objects(job),
            *make_tensorboard(*about),
        ]
        patched = apply_patches(objects, self.options.patches)
        counts = tuple(job.all_counts().items())
        return ObjectsPlan(job.name, self.options.namespace, patched, counts)

    def submit(self, plan: ObjectsPlan) -> PodsHandle:
        """Create the objects; if one of them or its pods cannot be created, delete them all."""
        created: list[tuple[str, str]] = []
        client = Client(self.context)
        handle = PodsHandle(
            self.kind, client, plan.name, plan.namespace, dict(plan.counts), created
        )
        known = handle.warnings()
        try:
            for manifest in plan.objects:
                _create(client, manifest, plan.name)
                created.append((manifest["kind"], manifest["metadata"]["name"]))
            handle.check_start(known)
        except BaseException as error:
            handle.cancel()
            if len(created) == len(plan.objects):
                handle.wait(_END_SECONDS)
            if isinstance(error, LaunchError):
                raise JobError(f"nothing was submitted: {error}") from None
            raise
        return handle

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PodsHandle:
        return PodsHandle.attach(cls.kind, facts)


def _create(client: Client, manifest: Manifest, job: str) -> None:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    try:
        client.create(manifest)
    except LaunchError as error:
        raise LaunchError(f"{kind} {name}: {error}{_hint(error, job, kind)}") from None


def _hint(error: LaunchError, job: str, kind: str) -> str:
    if isinstance(error, AlreadyExistsError):
        return f" (delete that of an earlier job with: phalanx cancel {job})"
    if kind in ("Role", "RoleBinding", "ServiceAccount"):
        return " (name an account that may get and patch Jobs: --controller-account)"
    return ""
