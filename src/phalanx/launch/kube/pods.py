"""The parts that the pods of all Kubernetes backends share, whichever object creates them."""

import base64
import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Self

from phalanx.cluster.job_environment import shape_variables
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
from phalanx.launch.job import Job, Resources
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.placeholders import fill_with
from phalanx.launch.task_commands import TENSORBOARD_PORT, task_variables, tensorboard_command

LABEL = "phalanx.job"
ROLE = "phalanx.role"
PORT_NAME = "tensorflow"
_CREDENTIALS_FOLDER, _, _CREDENTIALS_NAME = CREDENTIALS_PATH.rpartition("/")
# Preemption is not the pod's failure: the pod is restarted, and the restart is not counted.
PREEMPTED = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


@dataclass(frozen=True)
class Toleration:
    """A toleration, as `key=value:Effect` or `key:Effect`."""

    key: str
    value: str | None
    effect: str

    @classmethod
    def parse(cls, text: str) -> Self:
        pair, _, effect = text.rpartition(":")
        key, equals, value = pair.partition("=")
        if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise JobError(f"{text!r} is not a toleration: write key=value:NoSchedule")
        return cls(key, value if equals else None, effect)


@dataclass(frozen=True)
class PodOptions:
    """Where in the cluster the pods of a job run, and with which rights and additions."""

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
    """The API objects of a job, in the order in which they are created."""

    name: str
    namespace: str
    objects: tuple[Manifest, ...]
    counts: tuple[tuple[Role, int], ...]

    def render(self) -> str:
        return dump(self.objects)


def make_object(
    api: str, kind: str, name: str, job: Job, container: Container, options: PodOptions
) -> Manifest:
    """Make the header of an object of a job."""
    return make_header(api, kind, name, {**container.labels, LABEL: job.name}, options)


def make_header(
    api: str, kind: str, name: str, labels: Mapping[str, str], options: PodOptions
) -> Manifest:
    metadata = {"name": name, "namespace": options.namespace, "labels": dict(labels)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def make_secret(name: str, labels: Mapping[str, str], options: PodOptions) -> Iterator[Manifest]:
    """Make the Secret with the key for Google Cloud, if there is one."""
    if options.credentials is not None:
        text = base64.b64encode(options.credentials).decode()
        secret = make_header("v1", "Secret", f"{name}-credentials", labels, options)
        yield {**secret, "type": "Opaque", "data": {_CREDENTIALS_NAME: text}}


def make_network_policy(job: Job, container: Container, options: PodOptions) -> Manifest:
    """Let only the pods of the job connect to its tasks: TensorFlow authenticates nobody."""
    pods = _task_labels(job)
    return {
        **make_object("networking.k8s.io/v1", "NetworkPolicy", job.name, job, container, options),
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": pods}}]}],
        },
    }


def make_disruption_budget(
    job: Job, container: Container, options: PodOptions
) -> Iterator[Manifest]:
    """With `protect`, forbid the eviction of any pod while the job runs."""
    if options.protect:
        selector = {"matchLabels": _task_labels(job)}
        yield {
            **make_object("policy/v1", "PodDisruptionBudget", job.name, job, container, options),
            "spec": {"minAvailable": len(job.all_tasks()), "selector": selector},
        }


def pod_labels(job: Job, container: Container) -> dict[str, str]:
    return {**container.labels, **_task_labels(job)}


def _task_labels(job: Job) -> dict[str, str]:
    return {LABEL: job.name, "phalanx.part": "task"}


def make_job_spec(job: Job, count: int, pod: Manifest) -> Manifest:
    """Make the spec of an Indexed Job that restarts each pod by itself, up to a limit."""
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
    """Return the variables from which task.sh, or phalanx.detect(), derives TF_CONFIG."""
    return {
        "PHALANX_ROLE": str(role),
        **shape_variables(job.all_tasks()),
        "PHALANX_SERVICE": job.name,
        "PHALANX_PORT": str(PORT),
    }


def make_script(job: Job, container: Container, between: str = "-") -> str:
    """Make the script that sets TF_CONFIG and runs the program; `between` is in pod names."""
    model_dir = f', "model_dir": {json.dumps(job.model_dir)}' if job.model_dir else ""
    program = job.program.command(container.python)
    filled = (fill_with(each, lambda name: f'"${name}"', quote) for each in job.program.arguments)
    body = files("phalanx.launch.kube").joinpath("task.sh").read_text()
    last = " ".join(["exec", *map(quote, program), *filled])
    python = f"python={quote(container.python)}\n" if job.data_workers else ""
    return f"model_dir={quote(model_dir)}\nbetween={between}\n{python}{body}{last}\n"


def make_probes(job: Job, role: Role, port: str) -> Manifest:
    """Make a readiness probe; liveness probes only for data servers, as trainers may be busy."""
    if role not in DATA_ROLES and (role not in PEERS or len(job.listening_tasks()) == 1):
        return {}
    listens = {"tcpSocket": {"port": port}}
    ready = {"readinessProbe": {**listens, "periodSeconds": 10}}
    return {**ready, **_make_server_probes(listens)} if role in DATA_ROLES else ready


def _make_server_probes(check: Manifest) -> Manifest:
    """Allow a server ten minutes to start, and restart it after a minute without an answer."""
    return {
        "startupProbe": {**check, "periodSeconds": 5, "failureThreshold": 120},
        "livenessProbe": {**check, "periodSeconds": 20, "failureThreshold": 3},
    }


def make_pod(
    job: Job,
    container: Container,
    options: PodOptions,
    role: Role,
    script: str,
    environment: Mapping[str, str],
    *,
    name: str,
    port: str,
    probes: Manifest,
) -> Manifest:
    """Make the spec of a pod that runs a script in a container with this name and named port."""
    volumes, mounts = _make_volumes(job.name, container, options)
    variables = task_variables(job, role, environment)
    if options.credentials is not None:
        variables[CREDENTIALS_VARIABLE] = CREDENTIALS_PATH
    main = {
        "name": name,
        "image": container.image,
        "command": ["sh", "-c", script],
        "env": [{"name": key, "value": escape_variables(text)} for key, text in variables.items()],
        "ports": [{"name": port, "containerPort": PORT}],
        **probes,
        **_make_resources(job.needs(role)),
        **mounts,
    }
    grace = {"terminationGracePeriodSeconds": math.ceil(options.grace)}
    return {**grace, **_make_pod_spec(main, volumes, options)}


def make_indexed_pod(
    job: Job, container: Container, options: PodOptions, role: Role, name: str, between: str = "-"
) -> Manifest:
    """Make the spec of a pod of an Indexed Job, which computes TF_CONFIG from its index."""
    script, variables = make_script(job, container, between), role_variables(job, role)
    probes = make_probes(job, role, PORT_NAME)
    about = (job, container, options, role, script, variables)
    return make_pod(*about, name=name, port=PORT_NAME, probes=probes)


def _make_pod_spec(main: Manifest, volumes: Manifest, options: PodOptions) -> Manifest:
    return {
        "automountServiceAccountToken": options.service_account is not None,
        "enableServiceLinks": False,
        **make_scheduling(options),
        "containers": [main],
        **volumes,
    }


def make_scheduling(options: PodOptions) -> Manifest:
    """Make the part of a pod that says on which nodes, and as which account, it runs."""
    tolerations = [
        {
            "key": each.key,
            "operator": "Exists" if each.value is None else "Equal",
            **({} if each.value is None else {"value": each.value}),
            "effect": each.effect,
        }
        for each in options.tolerations
    ]
    chosen = {
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
        "nodeSelector": dict(options.node_selector),
        "tolerations": tolerations,
    }
    return {name: value for name, value in chosen.items() if value}


def escape_variables(text: str) -> str:
    """Escape `$(NAME)`, which Kubernetes would replace by the variable's value."""
    return text.replace("$(", "$$(")


def quote(text: str) -> str:
    """Quote a word for a shell script inside a manifest."""
    return escape_variables(shlex.quote(text))


def _make_resources(needs: Resources) -> Manifest:
    amounts: dict[str, str] = {}
    if needs.cpus:
        amounts["cpu"] = f"{needs.cpus * 1000:.0f}m"
    if needs.memory:
        amounts["memory"] = str(needs.memory)
    if needs.gpus:
        amounts["nvidia.com/gpu"] = str(needs.gpus)
    return {"resources": {"requests": amounts, "limits": dict(amounts)}} if amounts else {}


def _make_volumes(
    name: str, container: Container, options: PodOptions
) -> tuple[Manifest, Manifest]:
    """Make the `volumes` of a pod and the `volumeMounts` of its container, if there are any."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    for index, mount in enumerate(container.mounts):
        volume = f"mount-{index}"
        volumes.append({"name": volume, **_make_volume_source(mount)})
        read_only = {"readOnly": True} if mount.read_only else {}
        mounts.append({"name": volume, "mountPath": mount.target, **read_only})
    if options.credentials is not None:
        secret = {"secretName": f"{name}-credentials"}
        volumes.append({"name": "credentials", "secret": secret})
        mounts.append({"name": "credentials", "mountPath": _CREDENTIALS_FOLDER, "readOnly": True})
    return ({"volumes": volumes}, {"volumeMounts": mounts}) if volumes else ({}, {})


def _make_volume_source(mount: Mount) -> Manifest:
    server, _, path = mount.source.partition(":")
    sources = {
        MountKind.HOST: {"hostPath": {"path": mount.source}},
        MountKind.VOLUME: {"persistentVolumeClaim": {"claimName": mount.source}},
        MountKind.NFS: {"nfs": {"server": server, "path": path}},
    }
    return sources[mount.kind]


def make_tensorboard(job: Job, container: Container, options: PodOptions) -> Iterator[Manifest]:
    """Make a TensorBoard that runs on after the job, until `phalanx cancel`."""
    if options.tensorboard:
        yield from make_server(
            f"{job.name}-tensorboard",
            "tensorboard",
            container,
            options,
            labels={**container.labels, LABEL: job.name},
            selector={LABEL: job.name, "phalanx.part": "tensorboard"},
            command=tensorboard_command(job, container.python),
            ports={"http": (80, TENSORBOARD_PORT)},
            path="/",
            secret=job.name,
        )


def make_server(
    name: str,
    container_name: str,
    container: Container,
    options: PodOptions,
    *,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
    command: list[str],
    ports: Mapping[str, tuple[int, int]],
    path: str,
    secret: str,
    needs: Resources | None = None,
    replicas: int = 1,
) -> Iterator[Manifest]:
    """Make the Deployment and Service of an HTTP server; `ports` are the Service's and its own."""
    volumes, mounts = _make_volumes(secret, container, options)
    key = [{"name": CREDENTIALS_VARIABLE, "value": CREDENTIALS_PATH}]
    main = {
        "name": container_name,
        "image": container.image,
        "command": command,
        **({"env": key} if options.credentials is not None else {}),
        "ports": [{"name": each, "containerPort": port} for each, (_, port) in ports.items()],
        "readinessProbe": {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 5},
        **_make_server_probes({"tcpSocket": {"port": next(iter(ports))}}),
        **_make_resources(needs or Resources()),
        **mounts,
    }
    yield {
        **make_header("apps/v1", "Deployment", name, labels, options),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": dict(selector)},
            "template": {
                "metadata": {"labels": {**container.labels, **selector}},
                "spec": _make_pod_spec(main, volumes, options),
            },
        },
    }
    exposed = [
        {"name": each, "port": port, "targetPort": each} for each, (port, _) in ports.items()
    ]
    yield {
        **make_header("v1", "Service", name, labels, options),
        "spec": {"selector": dict(selector), "ports": exposed},
    }
