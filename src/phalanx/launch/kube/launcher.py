"""The base class of the launchers whose tasks are pods; they differ in the objects they create."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from phalanx.errors import JobError, LaunchError
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import CONTAINER, PATCH, make_container, read_patches
from phalanx.launch.job import Job
from phalanx.launch.kube import pods
from phalanx.launch.kube.client import AlreadyExistsError, Client
from phalanx.launch.kube.handle import JobKind, PodsHandle
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.patch import apply_patches
from phalanx.launch.kube.pods import PodOptions, Toleration
from phalanx.launch.options import GRACE, START_WITHIN, TENSORBOARD, Option, OptionValues
from phalanx.launch.values import parse_pair

PODS = (
    *CONTAINER,
    START_WITHIN,
    Option("--namespace", "The namespace of all objects.", default=PodOptions.namespace),
    Option("--context", "The context of the kubeconfig  [default: the current one]"),
    Option(
        "--node-selector",
        "Use only nodes with this label. Can be repeated.",
        parse_pair,
        "NAME=VALUE",
        multiple=True,
    ),
    Option(
        "--toleration",
        "Use nodes with this taint, too. Can be repeated.",
        Toleration.parse,
        "KEY=VALUE:EFFECT",
        multiple=True,
    ),
    Option("--priority-class", "The PriorityClass of the pods.", metavar="NAME"),
    Option(
        "--service-account",
        "The service account of the pods  [default: none, and no token is mounted]",
        metavar="NAME",
    ),
    Option(
        "--protect",
        "Keep nodes from being drained while the job runs (PodDisruptionBudget).",
        is_flag=True,
    ),
    replace(TENSORBOARD, help="Serve TensorBoard until `phalanx cancel`."),
    PATCH,
    GRACE,
)
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
        credentials = values["credentials"]
        return cls(
            make_container(values),
            PodOptions(
                namespace=values["namespace"],
                node_selector=dict(values["node_selector"]),
                tolerations=values["toleration"],
                priority_class=values["priority_class"],
                service_account=values["service_account"],
                controller_account=values.get("controller_account"),
                grace=values["grace"],
                protect=values["protect"],
                tensorboard=values["tensorboard"],
                credentials=Path(credentials).read_bytes() if credentials else None,
                patches=read_patches(values),
            ),
            values["context"],
        )

    @abstractmethod
    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """Make the objects that create the pods."""

    def plan(self, job: Job) -> pods.ObjectsPlan:
        job.validate()
        self.container.validate()
        labels = {**self.container.labels, pods.LABEL: job.name}
        about = (job, self.container, self.options)
        objects = [
            *pods.make_secret(job.name, labels, self.options),
            pods.make_network_policy(*about),
            *pods.make_disruption_budget(*about),
            *self.make_objects(job),
            *pods.make_tensorboard(*about),
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
