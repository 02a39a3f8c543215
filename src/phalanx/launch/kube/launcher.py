"""The base class of the launchers whose tasks are pods; they differ in the objects they create."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from phalanx.errors import JobError, LaunchError
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import (
    CONTAINER,
    PATCH,
    RUN_AS_USER,
    TENSORBOARD_CREDENTIALS,
    make_container,
    read_patches,
)
from phalanx.launch.job import Job
from phalanx.launch.kube import pods
from phalanx.launch.kube.client import AlreadyExistsError, Client
from phalanx.launch.kube.handle import JobKind, PodsHandle
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.namespace import find_namespace
from phalanx.launch.kube.patch import apply_patches
from phalanx.launch.kube.pods import PodOptions, Toleration
from phalanx.launch.kube.servers import make_tensorboard
from phalanx.launch.options import (
    ENV_FROM_SECRET,
    GRACE,
    START_WITHIN,
    TENSORBOARD,
    IntegerRange,
    Option,
    OptionValues,
    hides_secrets,
)
from phalanx.launch.secrets import HIDDEN
from phalanx.launch.values import parse_label

PODS = (
    replace(
        ENV_FROM_SECRET,
        help="Set a variable of every task to a key of a Secret  [default key: NAME]. "
        "Can be repeated.",
        metavar="NAME=SECRET[/KEY]",
    ),
    *CONTAINER,
    RUN_AS_USER,
    START_WITHIN,
    Option(
        "--namespace",
        "The namespace of all objects  [default: that of the context]",
        metavar="NAME",
    ),
    Option("--context", "The context of the kubeconfig  [default: the current one]"),
    Option(
        "--node-selector",
        "Use only nodes with this label. Can be repeated.",
        parse_label,
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
    Option(
        "--fs-group",
        "The group that owns the volumes of the pods.",
        IntegerRange(0),
        "GID",
    ),
    replace(TENSORBOARD, help="Serve TensorBoard until `phalanx cancel`."),
    TENSORBOARD_CREDENTIALS,
    Option(
        "--tensorboard-account",
        "The service account of TensorBoard  [default: none]",
        metavar="NAME",
    ),
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
        return cls(
            make_container(values),
            PodOptions(
                namespace=values["namespace"] or find_namespace(values["context"], os.environ),
                node_selector=dict(values["node_selector"]),
                tolerations=values["toleration"],
                priority_class=values["priority_class"],
                service_account=values["service_account"],
                controller_account=values.get("controller_account"),
                grace=values["grace"],
                protect=values["protect"],
                tensorboard=values["tensorboard"],
                tensorboard_credentials=_read_key(values, "tensorboard_credentials"),
                tensorboard_account=values["tensorboard_account"],
                credentials=_read_key(values, "credentials"),
                run_as_user=values["run_as_user"],
                fs_group=values["fs_group"],
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
        pods.check_names(self.container, self.options)
        labels = pods.job_labels(job, self.container)
        about = (job, self.container, self.options)
        objects = [
            *pods.make_secret(job.name, labels, self.options),
            pods.make_network_policy(*about),
            *pods.make_disruption_budget(*about),
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
        known = handle.warnings()
        try:
            for manifest in (pods.make_job_secret(plan), *plan.objects):
                _create(client, manifest, plan.name)
                created.append((manifest["kind"], manifest["metadata"]["name"]))
            handle.check_start(known)
        except BaseException as error:
            handle.cancel()
            if len(created) > len(plan.objects):
                handle.wait(_END_SECONDS)
            if isinstance(error, LaunchError):
                raise JobError(f"nothing was submitted: {error}") from None
            raise
        return handle

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PodsHandle:
        return PodsHandle.attach(cls.kind, facts)


def _read_key(values: OptionValues, name: str) -> bytes | None:
    if not values[name]:
        return None
    return HIDDEN.encode() if hides_secrets(values) else Path(values[name]).read_bytes()


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
