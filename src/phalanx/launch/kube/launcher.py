"""The base class of the launchers whose tasks are pods; they differ in the objects they create."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from phalanx.errors import JobError, LaunchError, NotFoundError
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import make_container
from phalanx.launch.job import Job
from phalanx.launch.kube import pods
from phalanx.launch.kube.client import (
    CUSTOM,
    AlreadyExistsError,
    Client,
    ForbiddenError,
    full_kind,
)
from phalanx.launch.kube.handle import JobKind, PodsHandle
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.metrics import check_metrics
from phalanx.launch.kube.options import COMPONENT, PODS, PodOptions, check_names, make_pod_options
from phalanx.launch.kube.patch import apply_patches
from phalanx.launch.kube.policies import make_disruption_budget, make_network_policies
from phalanx.launch.kube.servers import make_tensorboard
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
        return cls(
            make_container(values),
            make_pod_options(values),
            values["context"],
        )

    @abstractmethod
    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """Make the objects that create the pods."""

    def plan(self, job: Job) -> pods.ObjectsPlan:
        job.validate()
        self.container.validate()
        check_names(self.container, self.options)
        check_metrics(job, self.options)
        labels = pods.job_labels(job, self.container)
        about = (job, self.container, self.options)
        objects = [
            *pods.make_secret(job.name, labels, self.options),
            *make_network_policies(*about),
            *make_disruption_budget(*about),
            *self.make_objects(job),
            *make_tensorboard(*about),
        ]
        patched = apply_patches(objects, self.options.patches)
        counts = tuple(job.all_counts().items())
        return pods.ObjectsPlan(job.name, self.options.namespace, patched, counts)

    def submit(self, plan: pods.ObjectsPlan) -> PodsHandle:
        """Create the objects; if one of them or its pods cannot be created, delete them all."""
        created: list[tuple[str, str]] = []
        client = Client(self.context)
        handle = PodsHandle(
            self.kind, client, plan.name, plan.namespace, dict(plan.counts), created
        )
        self._check_version(client)
        known = handle.warnings()
        objects = [pods.make_job_secret(plan), *plan.objects]
        owner = (self.kind.kind, self.kind.names(plan.name, handle.counts)[0])
        try:
            for number, manifest in enumerate(objects):
                stored = self._create(client, manifest, plan)
                created.append((full_kind(manifest), manifest["metadata"]["name"]))
                objects[number] = {**manifest, "metadata": stored["metadata"]}
            _set_owner(client, owner, objects)
            handle.check_start(known)
        except BaseException as error:
            handle.cancel()
            if len(created) > len(plan.objects):
                handle.wait(_END_SECONDS)
            if isinstance(error, LaunchError):
                raise JobError(f"nothing was submitted: {error}") from None
            raise
        return handle

    def _check_version(self, client: Client) -> None:
        """Raise a JobError if the cluster is too old for the objects."""
        version, oldest = client.version(), self.kind.oldest
        if version < oldest:
            raise JobError(
                f"the cluster has Kubernetes {version[0]}.{version[1]}, and a {self.kind.kind} of "
                f"Phalanx needs {oldest[0]}.{oldest[1]} or newer: update the cluster, or launch "
                "the job on another backend"
            )

    def _create(self, client: Client, manifest: Manifest, plan: pods.ObjectsPlan) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            return client.create(manifest)
        except LaunchError as error:
            reason = self._explain(error, manifest, plan)
            raise LaunchError(f"{kind} {name}: {reason}") from None

    def _explain(self, error: LaunchError, manifest: Manifest, plan: pods.ObjectsPlan) -> str:
        """Say what to do about an object that cannot be created."""
        kind = manifest["kind"]
        if isinstance(error, AlreadyExistsError):
            kinds = sorted({each["kind"].lower() for each in plan.objects} | {"secret"})
            return (
                f"{error} (delete that of an earlier job with: phalanx cancel {plan.name}; if it "
                f"was applied with kubectl: kubectl delete {','.join(kinds)} "
                f"-n {plan.namespace} -l {pods.JOB}={plan.name})"
            )
        if isinstance(error, NotFoundError) and str(error).startswith("namespaces "):
            return f"{error} (create the namespace, or choose another one: --namespace)"
        if isinstance(error, NotFoundError) and full_kind(manifest) in CUSTOM:
            api = manifest["apiVersion"]
            missing = self.kind.operator if kind != "PodGroup" else "the scheduler of --gang"
            return (
                f"this cluster has no {kind} ({api}): {missing} is not installed. Ask the "
                "administrator of the cluster, or use: phalanx launch kubernetes without --gang"
            )
        if kind in ("Role", "RoleBinding", "ServiceAccount"):
            return f"{error} (name an account that may get and patch Jobs: --controller-account)"
        return str(error)

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PodsHandle:
        return PodsHandle.attach(cls.kind, facts)


def _set_owner(client: Client, name: tuple[str, str], objects: Sequence[Manifest]) -> None:
    """Let the cluster delete all objects with the one of this kind and name.

    TensorBoard stays until `phalanx cancel`, and so does everything if the user may not patch it.
    """
    owner = next(each for each in objects if (each["kind"], each["metadata"]["name"]) == name)
    for each in objects:
        metadata = each["metadata"]
        if each is owner or metadata["labels"].get(COMPONENT) == "tensorboard":
            continue
        try:
            client.set_owner(owner, full_kind(each), metadata["name"], metadata["namespace"])
        except ForbiddenError:
            return
