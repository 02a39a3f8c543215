"""What all pods of a job have in common, whichever object makes them."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from phalanx.cluster.shape import shape_variables
from phalanx.cluster.spec import DATA_ROLES, PEERS, Role
from phalanx.errors import JobError
from phalanx.launch.containers.container import (
    CREDENTIALS_PATH,
    CREDENTIALS_VARIABLE,
    PORT,
    Container,
    Mount,
    MountKind,
)
from phalanx.launch.environment import task_variables
from phalanx.launch.job import Job, Resources
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.placeholders import fill_with
from phalanx.launch.tensorboard import PORT as TENSORBOARD_PORT
from phalanx.launch.tensorboard import tensorboard_command

LABEL = "phalanx.job"
ROLE = "phalanx.role"
_CREDENTIALS_FOLDER, _, _CREDENTIALS_NAME = CREDENTIALS_PATH.rpartition("/")
# A pod that had to make room was not at fault, and is started again.
PREEMPTED = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


@dataclass(frozen=True)
class Toleration:
    """`key=value:Effect` or `key:Effect`."""

    key: str
    value: str | None
    effect: str

    @classmethod
    def parse(cls, text: str) -> Toleration:
        """A toleration as `kubectl taint` writes the taint.

        >>> Toleration.parse("gpu=yes:NoSchedule")
        Toleration(key='gpu', value='yes', effect='NoSchedule')
        """
        pair, _, effect = text.rpartition(":")
        key, equals, value = pair.partition("=")
        if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise JobError(f"{text!r} is not a toleration: write key=value:NoSchedule")
        return cls(key, value if equals else None, effect)


@dataclass(frozen=True)
class PodOptions:
    """Where in the cluster a job goes, and how it is treated there."""

    namespace: str = "default"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str | None = None
    service_account: str | None = None
    controller_account: str | None = None
    grace: float = 30.0
    protect: bool = False
    tensorboard: bool = False
    credentials: bytes | None = None
    patches: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class ObjectsPlan:
    """The objects of a job, in the order in which they are made."""

    name: str
    namespace: str
    objects: tuple[Manifest, ...]
    counts: tuple[tuple[Role, int], ...]

    def render(self) -> str:
        """YAML for `kubectl apply -f -`."""
        return dump(self.objects)


def make_object(
    api: str, kind: str, name: str, job: Job, container: Container, place: PodOptions
) -> Manifest:
    """The head of an object, with its labels."""
    return head(api, kind, name, {**container.labels, LABEL: job.name}, place)


def head(api: str, kind: str, name: str, labels: Mapping[str, str], place: PodOptions) -> Manifest:
    """What every object begins with."""
    metadata = {"name": name, "namespace": place.namespace, "labels": dict(labels)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def make_credentials(job: Job, container: Container, place: PodOptions) -> Iterator[Manifest]:
    """The key for Google Cloud, if there is one."""
    yield from make_secret(job.name, {**container.labels, LABEL: job.name}, place)


def make_secret(name: str, labels: Mapping[str, str], place: PodOptions) -> Iterator[Manifest]:
    """The same for whatever has this name."""
    if place.credentials is not None:
        text = base64.b64encode(place.credentials).decode()
        secret = head("v1", "Secret", f"{name}-credentials", labels, place)
        yield {**secret, "type": "Opaque", "data": {_CREDENTIALS_NAME: text}}


def make_network_policy(job: Job, container: Container, place: PodOptions) -> Manifest:
    """TensorFlow asks nobody for a password: only the job's own pods may speak to it."""
    pods = {LABEL: job.name, "phalanx.part": "task"}
    return {
        **make_object("networking.k8s.io/v1", "NetworkPolicy", job.name, job, container, place),
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": pods}}]}],
        },
    }


def make_disruption_budget(job: Job, container: Container, place: PodOptions) -> Iterator[Manifest]:
    """If it is asked for, no pod may be sent away while the job runs."""
    if place.protect:
        pods = {LABEL: job.name, "phalanx.part": "task"}
        yield {
            **make_object("policy/v1", "PodDisruptionBudget", job.name, job, container, place),
            "spec": {"minAvailable": len(job.all_tasks()), "selector": {"matchLabels": pods}},
        }


def pod_labels(job: Job, container: Container) -> dict[str, str]:
    """By which a task's pod is found."""
    return {**container.labels, LABEL: job.name, "phalanx.part": "task"}


def make_job_spec(job: Job, count: int, pod: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of an Indexed Job that starts every pod again by itself, up to a limit."""
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": job.restarts,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {"rules": [PREEMPTED]},
        "template": pod,
    }


def role_variables(job: Job, role: Role) -> dict[str, str]:
    """What task.sh, and phalanx.detect() in its place, need to know of the job."""
    return {
        "PHALANX_ROLE": str(role),
        **shape_variables(job.all_tasks()),
        "PHALANX_SERVICE": job.name,
        "PHALANX_PORT": str(PORT),
    }


def make_script(job: Job, container: Container, between: str = "-") -> str:
    """The shell finds out which task the pod is, and becomes the program.

    `between` is what stands between role and index in the names of the pods.
    """
    model_dir = f', "model_dir": {json.dumps(job.model_dir)}' if job.model_dir else ""
    start = job.program.start(container.python)
    filled = (fill_with(each, lambda name: f'"${name}"', quote) for each in job.program.arguments)
    body = files("phalanx.launch.kube").joinpath("task.sh").read_text()
    last = " ".join(["exec", *map(quote, start), *filled])
    python = f"python={quote(container.python)}\n" if job.data_workers else ""
    return f"model_dir={quote(model_dir)}\nbetween={between}\n{python}{body}{last}\n"


def make_probes(job: Job, role: Role, port: str) -> dict[str, Any]:
    """A task is ready when it listens. Only servers of data can be told dead from busy."""
    if role not in DATA_ROLES and (role not in PEERS or len(job.listening()) == 1):
        return {}
    listens = {"tcpSocket": {"port": port}}
    ready = {"readinessProbe": {**listens, "periodSeconds": 10}}
    return {**ready, **make_vital_probes(listens)} if role in DATA_ROLES else ready


def make_vital_probes(check: Mapping[str, Any]) -> dict[str, Any]:
    """A server has ten minutes to start; one that does not answer for a minute is replaced."""
    return {
        "startupProbe": {**check, "periodSeconds": 5, "failureThreshold": 120},
        "livenessProbe": {**check, "periodSeconds": 20, "failureThreshold": 3},
    }


def make_pod(
    job: Job,
    container: Container,
    place: PodOptions,
    role: Role,
    script: str,
    environment: Mapping[str, str],
    *,
    name: str,
    port: str,
    probes: Mapping[str, Any],
) -> dict[str, Any]:
    """The spec of a pod that runs a script in a container of this name, with a port of that."""
    volumes, mounts = make_volumes(job.name, container, place)
    needs = job.needs(role)
    variables = {
        **task_variables(job, role, environment),
        **({CREDENTIALS_VARIABLE: CREDENTIALS_PATH} if place.credentials is not None else {}),
    }
    main = {
        "name": name,
        "image": container.image,
        "command": ["sh", "-c", script],
        "env": [{"name": name, "value": literal(text)} for name, text in variables.items()],
        "ports": [{"name": port, "containerPort": PORT}],
        **probes,
        **make_resources(needs),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    grace = {"terminationGracePeriodSeconds": math.ceil(place.grace)}
    return {**grace, **make_pod_spec(main, volumes, place)}


def make_pod_spec(main: Manifest, volumes: Sequence[Manifest], place: PodOptions) -> dict[str, Any]:
    """A pod of one container, which gets a token for the cluster only if it runs as somebody."""
    return {
        "automountServiceAccountToken": place.service_account is not None,
        "enableServiceLinks": False,
        **make_scheduling(place),
        "containers": [main],
        **({"volumes": volumes} if volumes else {}),
    }


def make_scheduling(place: PodOptions) -> dict[str, Any]:
    """Which nodes a pod may go to, and as whom."""
    tolerations = [
        {
            "key": each.key,
            "operator": "Exists" if each.value is None else "Equal",
            **({} if each.value is None else {"value": each.value}),
            "effect": each.effect,
        }
        for each in place.tolerations
    ]
    chosen = {
        "serviceAccountName": place.service_account,
        "priorityClassName": place.priority_class,
        "nodeSelector": dict(place.node_selector),
        "tolerations": tolerations,
    }
    return {name: value for name, value in chosen.items() if value}


def literal(text: str) -> str:
    """Kubernetes would put a variable's value in place of `$(NAME)`."""
    return text.replace("$(", "$$(")


def quote(text: str) -> str:
    """A word for the shell, in a place where Kubernetes looks for variables."""
    return literal(shlex.quote(text))


def make_resources(needs: Resources) -> dict[str, Any]:
    """What a container asks for, and gets no more of."""
    amounts: dict[str, str] = {}
    if needs.cpus:
        amounts["cpu"] = f"{needs.cpus * 1000:.0f}m"
    if needs.memory:
        amounts["memory"] = str(needs.memory)
    if needs.gpus:
        amounts["nvidia.com/gpu"] = str(needs.gpus)
    return {"resources": {"requests": amounts, "limits": dict(amounts)}} if amounts else {}


def make_volumes(
    name: str, container: Container, place: PodOptions
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes of a pod, and where its container has them."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, mount in enumerate(container.mounts):
        volume = f"mount-{number}"
        volumes.append({"name": volume, **_source(mount)})
        read_only = {"readOnly": True} if mount.read_only else {}
        mounts.append({"name": volume, "mountPath": mount.target, **read_only})
    if place.credentials is not None:
        source = {"secret": {"secretName": f"{name}-credentials"}}
        volumes.append({"name": "credentials", **source})
        mounts.append({"name": "credentials", "mountPath": _CREDENTIALS_FOLDER, "readOnly": True})
    return volumes, mounts


def _source(mount: Mount) -> dict[str, Any]:
    if mount.kind is MountKind.HOST:
        return {"hostPath": {"path": mount.source}}
    if mount.kind is MountKind.VOLUME:
        return {"persistentVolumeClaim": {"claimName": mount.source}}
    server, _, path = mount.source.partition(":")
    return {"nfs": {"server": server, "path": path}}


def make_tensorboard(job: Job, container: Container, place: PodOptions) -> Iterator[Manifest]:
    """TensorBoard stays after the job, until `phalanx cancel`."""
    if not place.tensorboard:
        return
    name = f"{job.name}-tensorboard"
    pods = {LABEL: job.name, "phalanx.part": "tensorboard"}
    volumes, mounts = make_volumes(job.name, container, place)
    credentials = [{"name": CREDENTIALS_VARIABLE, "value": CREDENTIALS_PATH}]
    main = {
        "name": "tensorboard",
        "image": container.image,
        "command": tensorboard_command(job, container.python),
        **({"env": credentials} if place.credentials is not None else {}),
        "ports": [{"name": "http", "containerPort": TENSORBOARD_PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
        **make_vital_probes({"tcpSocket": {"port": "http"}}),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    yield {
        **make_object("apps/v1", "Deployment", name, job, container, place),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": pods},
            "template": {
                "metadata": {"labels": {**container.labels, **pods}},
                "spec": make_pod_spec(main, volumes, place),
            },
        },
    }
    yield {
        **make_object("v1", "Service", name, job, container, place),
        "spec": {"selector": pods, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }
