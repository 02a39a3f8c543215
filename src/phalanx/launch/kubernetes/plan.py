"""From a job to API objects: a pure function. Their size does not depend on the number of tasks.

The pods of one Indexed Job are numbered: the chief first, then the workers, the ps, the evaluators.
The Job's success policy ends everybody when the chief has succeeded, so nobody has to watch it.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from phalanx.cluster.shape import VARIABLE as SHAPE
from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.container import (
    CREDENTIALS_PATH,
    CREDENTIALS_VARIABLE,
    PORT,
    Container,
    Mount,
    MountKind,
)
from phalanx.launch.environment import DEFAULTS, thread_variables
from phalanx.launch.job import Job, Resources
from phalanx.launch.manifest import Manifest, dump
from phalanx.launch.patch import apply_patches
from phalanx.launch.placeholders import check_placeholders, fill_with

LABEL = "phalanx.job"
_CREDENTIALS_FOLDER, _, _CREDENTIALS_NAME = CREDENTIALS_PATH.rpartition("/")
_TENSORBOARD_PORT = 6006


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
class Place:
    """Where in the cluster a job goes, and how it is treated there."""

    namespace: str = "default"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str | None = None
    service_account: str | None = None
    grace: float = 30.0
    protect: bool = False
    tensorboard: bool = False
    credentials: bytes | None = None
    patches: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class KubernetesPlan:
    """The objects, in the order in which they are made."""

    name: str
    namespace: str
    objects: tuple[Manifest, ...]
    counts: tuple[tuple[Role, int], ...]

    def render(self) -> str:
        """YAML for `kubectl apply -f -`."""
        return dump(self.objects)


def plan_objects(job: Job, container: Container, place: Place) -> KubernetesPlan:
    """The objects of a job."""
    job.validate()
    container.validate(job)
    check_placeholders(job.program.arguments)
    _check_needs(job)
    if place.tensorboard and not job.model_dir:
        raise JobError("TensorBoard has nothing to show without --model-dir")
    objects = [*_surroundings(job, container, place), _job(job, container, place)]
    if place.tensorboard:
        objects += _tensorboard(job, container, place)
    patched = apply_patches(objects, place.patches)
    return KubernetesPlan(job.name, place.namespace, patched, tuple(job.counts().items()))


def _check_needs(job: Job) -> None:
    """All pods of a Job are made from one template."""
    different = {role: job.needs(role) for role in job.counts()}
    if len(set(different.values())) > 1:
        raise JobError(
            "the roles need different amounts, but the pods of a Kubernetes Job are all alike: "
            "give --cpus, --memory and --gpus without a role"
        )


def _object(
    api: str, kind: str, name: str, job: Job, container: Container, place: Place
) -> Manifest:
    labels = {LABEL: job.name, **container.labels}
    metadata = {"name": name, "namespace": place.namespace, "labels": labels}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def _surroundings(job: Job, container: Container, place: Place) -> Iterator[Manifest]:
    """What the pods need to find each other, and nobody else."""
    pods = {LABEL: job.name, "phalanx.part": "task"}
    if place.credentials is not None:
        text = base64.b64encode(place.credentials).decode()
        secret = _object("v1", "Secret", f"{job.name}-credentials", job, container, place)
        yield {**secret, "type": "Opaque", "data": {_CREDENTIALS_NAME: text}}
    yield {
        **_object("v1", "Service", job.name, job, container, place),
        "spec": {
            # No address of its own, so that each pod has a name in the DNS, ready or not.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": pods,
            "ports": [{"name": "tensorflow", "port": PORT, "targetPort": PORT}],
        },
    }
    yield {
        # TensorFlow asks nobody for a password: only the job's own pods may speak to it.
        **_object("networking.k8s.io/v1", "NetworkPolicy", job.name, job, container, place),
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": pods}}]}],
        },
    }
    if place.protect:
        yield {
            **_object("policy/v1", "PodDisruptionBudget", job.name, job, container, place),
            "spec": {
                "minAvailable": len(job.tasks()),
                "selector": {"matchLabels": pods},
            },
        }


def _job(job: Job, container: Container, place: Place) -> Manifest:
    count = len(job.tasks())
    deciding = "0" if job.chief or job.workers == 1 else f"0-{job.workers - 1}"
    limit = {"activeDeadlineSeconds": int(job.time_limit)} if job.time_limit else {}
    return {
        **_object("batch/v1", "Job", job.name, job, container, place),
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            **limit,
            "backoffLimitPerIndex": job.restarts,
            "maxFailedIndexes": 0,
            # A pod that had to make room was not at fault, and is started again.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
            "successPolicy": {"rules": [{"succeededIndexes": deciding}]},
            "template": {
                "metadata": {
                    "labels": {**container.labels, LABEL: job.name, "phalanx.part": "task"}
                },
                "spec": _pod(job, container, place),
            },
        },
    }


def _pod(job: Job, container: Container, place: Place) -> dict[str, Any]:
    volumes, mounts = _volumes(job, container, place)
    needs = job.needs(Role.CHIEF if job.chief else Role.WORKER)
    shape = ",".join(f"{role}={count}" for role, count in job.counts().items())
    environment = {
        SHAPE: shape,
        "PHALANX_SERVICE": job.name,
        "PHALANX_PORT": str(PORT),
        **DEFAULTS,
        **(thread_variables(max(1, int(needs.cpus))) if needs.cpus else {}),
        **({CREDENTIALS_VARIABLE: CREDENTIALS_PATH} if place.credentials is not None else {}),
        **{name: _literal(text) for name, text in job.environment.items()},
    }
    main = {
        "name": "task",
        "image": container.image,
        "command": ["sh", "-c", _script(job, container)],
        "env": [{"name": name, "value": text} for name, text in environment.items()],
        "ports": [{"name": "tensorflow", "containerPort": PORT}],
        **_resources(needs),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    return {
        "restartPolicy": "Never",
        "subdomain": job.name,
        "terminationGracePeriodSeconds": int(place.grace),
        "automountServiceAccountToken": place.service_account is not None,
        "enableServiceLinks": False,
        **_scheduling(place),
        "containers": [main],
        **({"volumes": volumes} if volumes else {}),
    }


def _scheduling(place: Place) -> dict[str, Any]:
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


def _literal(text: str) -> str:
    """Kubernetes would put a variable's value in place of `$(NAME)`."""
    return text.replace("$(", "$$(")


def _script(job: Job, container: Container) -> str:
    """The shell finds out which task the pod is, and becomes the program."""
    model_dir = f', "model_dir": {json.dumps(job.model_dir)}' if job.model_dir else ""
    arguments = job.program.arguments
    start = job.program.argv(container.python)[: -len(arguments) or None]
    filled = (fill_with(each, lambda name: f'"${name}"', _quote) for each in arguments)
    body = files("phalanx.launch.kubernetes").joinpath("task.sh").read_text()
    last = " ".join(["exec", *map(_quote, start), *filled])
    return f"model_dir={_quote(model_dir)}\n{body}{last}\n"


def _quote(text: str) -> str:
    return _literal(shlex.quote(text))


def _resources(needs: Resources) -> dict[str, Any]:
    amounts: dict[str, str] = {}
    if needs.cpus:
        amounts["cpu"] = f"{needs.cpus * 1000:.0f}m"
    if needs.memory:
        amounts["memory"] = str(needs.memory)
    if needs.gpus:
        amounts["nvidia.com/gpu"] = str(needs.gpus)
    return {"resources": {"requests": amounts, "limits": dict(amounts)}} if amounts else {}


def _volumes(
    job: Job, container: Container, place: Place
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes of a pod, and where its container has them."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, mount in enumerate(container.mounts):
        name = f"mount-{number}"
        volumes.append({"name": name, **_source(mount)})
        read_only = {"readOnly": True} if mount.read_only else {}
        mounts.append({"name": name, "mountPath": mount.target, **read_only})
    if place.credentials is not None:
        source = {"secret": {"secretName": f"{job.name}-credentials"}}
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


def _tensorboard(job: Job, container: Container, place: Place) -> Iterator[Manifest]:
    """TensorBoard stays after the job, until `phalanx cancel`."""
    name = f"{job.name}-tensorboard"
    pods = {LABEL: job.name, "phalanx.part": "tensorboard"}
    volumes, mounts = _volumes(job, container, place)
    command = ["tensorboard", f"--logdir={job.model_dir}", "--bind_all"]
    credentials = [{"name": CREDENTIALS_VARIABLE, "value": CREDENTIALS_PATH}]
    main = {
        "name": "tensorboard",
        "image": container.image,
        "command": [*command, f"--port={_TENSORBOARD_PORT}"],
        **({"env": credentials} if place.credentials is not None else {}),
        "ports": [{"name": "http", "containerPort": _TENSORBOARD_PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
        **({"volumeMounts": mounts} if mounts else {}),
    }
    yield {
        **_object("apps/v1", "Deployment", name, job, container, place),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": pods},
            "template": {
                "metadata": {"labels": {**container.labels, **pods}},
                "spec": {
                    "automountServiceAccountToken": place.service_account is not None,
                    "enableServiceLinks": False,
                    **_scheduling(place),
                    "containers": [main],
                    **({"volumes": volumes} if volumes else {}),
                },
            },
        },
    }
    yield {
        **_object("v1", "Service", name, job, container, place),
        "spec": {"selector": pods, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }
