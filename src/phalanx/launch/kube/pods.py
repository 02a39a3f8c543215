"""The parts that the pods of all Kubernetes backends share, whichever object creates them."""

import base64
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from phalanx.cluster import job_secret
from phalanx.cluster.job_environment import shape_variables
from phalanx.cluster.spec import DATA_ROLES, PEERS, Role
from phalanx.errors import ConfigurationError, Interrupted, JobError
from phalanx.launch.containers.container import (
    CREDENTIALS_PATH,
    CREDENTIALS_VARIABLE,
    PORT,
    Container,
    Mount,
    MountKind,
)
from phalanx.launch.guarded import guard_prefix
from phalanx.launch.job import Job, Resources
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.kube.metrics import (
    make_metrics_annotations,
    make_metrics_ports,
    metrics_variables,
)
from phalanx.launch.kube.options import COMPONENT, OBJECT_NAME, TASK_NEEDS, PodOptions
from phalanx.launch.kube.scheduling import make_scheduling
from phalanx.launch.kube.security import make_container_security, make_pod_security
from phalanx.launch.placeholders import fill_with
from phalanx.launch.secrets import HIDDEN
from phalanx.launch.task_commands import (
    RENAME_CHIEF,
    task_variables,
    tf_config_settings,
)

# The labels by which the objects and pods of a job are found.
JOB = "phalanx/job"
PART = "phalanx/part"
ROLE = "phalanx/role"
CONTROLLER = "controller"
PORT_NAME = "tensorflow"
_SECRET_KEY = "secret"
_CREDENTIALS_FOLDER, _, _CREDENTIALS_NAME = CREDENTIALS_PATH.rpartition("/")
# Preemption is not the pod's failure: the pod is replaced, and this is not counted.
PREEMPTED = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}
# The same for its peers, which save and exit with this code when a task is preempted.
INTERRUPTED = {
    "action": "Ignore",
    "onExitCodes": {"operator": "In", "values": [Interrupted.exit_code]},
}
# Wrong settings or arguments: the next start would find the same.
_WRONG_USAGE = {
    "action": "FailIndex",
    "onExitCodes": {"operator": "In", "values": [ConfigurationError.exit_code]},
}


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
    return make_header(api, kind, name, job_labels(job, container), options)


def job_labels(job: Job, container: Container, part: str | None = None) -> dict[str, str]:
    """Return the labels of an object or a pod of a job, with those of the user."""
    return {**standard_labels(job.name, part), **container.labels, JOB: job.name}


def standard_labels(instance: str, part: str | None = None) -> dict[str, str]:
    """Return the labels that Kubernetes recommends for all objects."""
    component = {} if part is None else {COMPONENT: part}
    return {
        "app.kubernetes.io/name": "phalanx",
        "app.kubernetes.io/instance": instance,
        **component,
        "app.kubernetes.io/managed-by": "phalanx",
    }


def make_header(
    api: str, kind: str, name: str, labels: Mapping[str, str], options: PodOptions
) -> Manifest:
    metadata = {"name": name, "namespace": options.namespace, "labels": dict(labels)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def make_secret(name: str, labels: Mapping[str, str], options: PodOptions) -> Iterator[Manifest]:
    """Make the Secret with the key for Google Cloud, if there is one."""
    if options.credentials is not None:
        secret = make_header("v1", "Secret", f"{name}-credentials", labels, options)
        text = base64.b64encode(options.credentials).decode()
        data = {"data": {_CREDENTIALS_NAME: text}}
        hidden = {"stringData": {_CREDENTIALS_NAME: HIDDEN}}
        yield {
            **secret,
            "type": "Opaque",
            **(hidden if options.credentials == HIDDEN.encode() else data),
        }


def make_job_secret(plan: ObjectsPlan) -> Manifest:
    """Make the Secret with the secret of the job, which plans do not have."""
    metadata = {"name": _secret_name(plan.name), "namespace": plan.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**metadata, "labels": {**standard_labels(plan.name), JOB: plan.name}},
        "type": "Opaque",
        "data": {_SECRET_KEY: base64.b64encode(job_secret.make_secret().encode()).decode()},
    }


def _read_job_secret(name: str) -> Manifest:
    """Make the variable with the secret; objects that the user has applied himself lack it."""
    key = {"name": _secret_name(name), "key": _SECRET_KEY, "optional": True}
    return {"name": job_secret.VARIABLE, "valueFrom": {"secretKeyRef": key}}


def _secret_name(name: str) -> str:
    return f"{name}-job-secret"


def pod_labels(job: Job, container: Container, role: Role) -> dict[str, str]:
    return {**job_labels(job, container, str(role)), **task_labels(job), ROLE: str(role)}


def pod_metadata(job: Job, container: Container, options: PodOptions, role: Role) -> Manifest:
    """Make the metadata of the pods of a role."""
    labels = {"labels": pod_labels(job, container, role)}
    return {**labels, **make_metrics_annotations(role, options)}


def task_labels(job: Job) -> dict[str, str]:
    """Return the labels that select the pods of all tasks."""
    return {JOB: job.name, PART: "task"}


def make_pull_secrets(options: PodOptions) -> Manifest:
    """Make the part of a pod with the Secrets that its image is pulled with."""
    names = [{"name": name} for name in options.image_pull_secrets]
    return {"imagePullSecrets": names} if names else {}


def make_job_spec(job: Job, count: int, pod: Manifest) -> Manifest:
    """Make the spec of an Indexed Job that restarts each pod by itself, up to a limit."""
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": job.restarts,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {"rules": [PREEMPTED, INTERRUPTED, _WRONG_USAGE]},
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


def make_script(
    job: Job,
    container: Container,
    between: str = "-",
    before: str = "",
    run: str = "exec {program}\n",
) -> str:
    """Make the script that sets TF_CONFIG and runs the program.

    `between` is in the names of the pods; `before` are lines that set what a pod is not told.
    """
    program = job.program.command(container.python)
    filled = (fill_with(each, lambda name: f'"${name}"', quote) for each in job.program.arguments)
    body = files("phalanx.launch.kube").joinpath("task.sh").read_text()
    guard = guard_prefix(job, container.python)
    last = run.format(program=" ".join([*map(quote, (*guard, *program)), *filled]))
    python = f"python={quote(container.python)}\n" if job.data_workers else ""
    rename = RENAME_CHIEF if job.master else ""
    settings = f"model_dir={quote(tf_config_settings(job))}\nbetween={between}\n{python}"
    return f"name=$PHALANX_SERVICE\n{settings}{before}{body}{rename}{last}"


def make_probes(job: Job, role: Role, port: str) -> Manifest:
    """Make a readiness probe; liveness probes only for data servers, as trainers may be busy."""
    if role not in DATA_ROLES and (role not in PEERS or len(job.listening_tasks()) == 1):
        return {}
    listens = {"tcpSocket": {"port": port}}
    ready = {"readinessProbe": {**listens, "periodSeconds": 10}}
    return {**ready, **make_server_probes(listens)} if role in DATA_ROLES else ready


def make_server_probes(check: Manifest) -> Manifest:
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
    volumes, mounts = make_volumes(job.name, container, options)
    variables = {
        **task_variables(job, role, environment, grace=options.grace_periods.grace),
        **metrics_variables(job, role, options),
    }
    if options.credentials is not None:
        variables[CREDENTIALS_VARIABLE] = CREDENTIALS_PATH
    main = {
        "name": name,
        "image": container.image,
        "command": ["sh", "-c", script],
        "env": [
            *({"name": key, "value": escape_variables(text)} for key, text in variables.items()),
            *(_make_secret_variable(key, source) for key, source in job.secrets.items()),
            _read_job_secret(job.name),
        ],
        "ports": [{"name": port, "containerPort": PORT}, *make_metrics_ports(role, options)],
        **probes,
        **make_resources(job.needs(role), TASK_NEEDS),
        **make_container_security(),
        **mounts,
    }
    grace = {"terminationGracePeriodSeconds": math.ceil(options.grace_periods.grace)}
    return {**grace, **make_pod_spec(main, volumes, options)}


def _make_secret_variable(name: str, source: str) -> Manifest:
    """Take a variable from `SECRET/KEY`; without a key, from the key of the variable's name."""
    secret, slash, given = source.partition("/")
    key = given if slash else name
    if not OBJECT_NAME.fullmatch(secret) or not re.fullmatch(r"[-\w.]{1,253}", key, re.ASCII):
        raise JobError(
            f"--env-from-secret {name}={source} is no Secret and key of Kubernetes: write "
            f"{name}=SECRET or {name}=SECRET/KEY, the name of the Secret in lower case"
        )
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def make_indexed_pod(
    job: Job, container: Container, options: PodOptions, role: Role, name: str, between: str = "-"
) -> Manifest:
    """Make the spec of a pod of an Indexed Job, which computes TF_CONFIG from its index."""
    script, variables = make_script(job, container, between), role_variables(job, role)
    probes = make_probes(job, role, PORT_NAME)
    about = (job, container, options, role, script, variables)
    return make_pod(*about, name=name, port=PORT_NAME, probes=probes)


def make_pod_spec(main: Manifest, volumes: Manifest, options: PodOptions) -> Manifest:
    return {
        "automountServiceAccountToken": options.service_account is not None,
        "enableServiceLinks": False,
        **make_pod_security(options.run_as_user, options.fs_group),
        **make_scheduling(options),
        **make_pull_secrets(options),
        "containers": [main],
        **volumes,
    }


def escape_variables(text: str) -> str:
    """Escape `$(NAME)`, which Kubernetes would replace by the variable's value, and `$$`.

    >>> escape_variables("$(A) $$ $B")
    '$$(A) $$$ $B'
    """
    return re.sub(r"\$(?=[$(])", "$$", text)


def quote(text: str) -> str:
    """Quote a word for a shell script inside a manifest."""
    return escape_variables(shlex.quote(text))


def make_resources(needs: Resources, default: Resources | None = None) -> Manifest:
    """Make requests and limits from the needs; what is not set there is requested by default."""
    limits = _make_amounts(needs)
    requests = {**_make_amounts(default or Resources()), **limits}
    found = {"requests": requests, "limits": limits}
    return {"resources": {name: each for name, each in found.items() if each}} if requests else {}


def _make_amounts(needs: Resources) -> dict[str, str]:
    amounts = {
        "cpu": f"{needs.cpus * 1000:.0f}m" if needs.cpus else "",
        "memory": str(needs.memory or ""),
        "nvidia.com/gpu": str(needs.gpus or ""),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def make_volumes(
    name: str, container: Container, options: PodOptions, temporary: bool = False
) -> tuple[Manifest, Manifest]:
    """Make the `volumes` of a pod and the `volumeMounts` of its container, if there are any.

    With `temporary`, /tmp is a volume, for a container with a read-only root file system.
    """
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
    if temporary:
        volumes.append({"name": "tmp", "emptyDir": {}})
        mounts.append({"name": "tmp", "mountPath": "/tmp"})
    return ({"volumes": volumes}, {"volumeMounts": mounts}) if volumes else ({}, {})


def _make_volume_source(mount: Mount) -> Manifest:
    server, _, path = mount.source.partition(":")
    sources = {
        MountKind.HOST: {"hostPath": {"path": mount.source}},
        MountKind.VOLUME: {"persistentVolumeClaim": {"claimName": mount.source}},
        MountKind.NFS: {"nfs": {"server": server, "path": path}},
    }
    return sources[mount.kind]
