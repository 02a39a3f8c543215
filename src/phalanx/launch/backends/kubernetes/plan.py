"""From a job to API objects: a pure function. Their size does not depend on the number of tasks.

Each role has an Indexed Job, whose pods find out from their index who they are. The chief's decides
or, without a chief, the workers'. Where there are several, a small pod, the conductor, ends them
together, so that nobody has to watch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any

from phalanx.cluster.spec import Role
from phalanx.launch.backends.kubernetes.job_controller import JOB_FAILED
from phalanx.launch.containers.container import PORT, Container
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.pods import (
    LABEL,
    PREEMPTED,
    ROLE,
    PodOptions,
    escape_variables,
    make_job_spec,
    make_object,
    make_pod,
    make_probes,
    make_scheduling,
    make_script,
    pod_labels,
    role_variables,
)

_PORT = "tensorflow"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_NEEDS = {"cpu": "100m", "memory": "128Mi"}


def make_objects(job: Job, container: Container, place: PodOptions) -> Iterator[Manifest]:
    """A Service, so that the pods find each other, a Job for each role, and their conductor."""
    roles = job.all_counts()
    yield {
        **make_object("v1", "Service", job.name, job, container, place),
        "spec": {
            # No address of its own, so that each pod has a name in the DNS, ready or not.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: job.name, "phalanx.part": "task"},
            "ports": [{"name": _PORT, "port": PORT, "targetPort": PORT}],
        },
    }
    several = len(roles) > 1
    if several and place.controller_account is None:
        yield from _make_account(job, container, place)
    for role, count in roles.items():
        yield _make_job(job, container, place, role, count)
    if several:
        yield _make_conductor(job, container, place)


def job_names(name: str, roles: Iterable[Role]) -> list[str]:
    """The Jobs of a job; the first one tells how it has ended."""
    names = [f"{name}-{role}" for role in roles]
    return [name, *names] if len(names) > 1 else names


def _make_job(
    job: Job, container: Container, place: PodOptions, role: Role, count: int
) -> Manifest:
    limit = {"activeDeadlineSeconds": math.ceil(job.time_limit)} if job.time_limit else {}
    pod = make_pod(
        job,
        container,
        place,
        role,
        make_script(job, container),
        role_variables(job, role),
        name="task",
        port=_PORT,
        probes=make_probes(job, role, _PORT),
    )
    template = {
        "metadata": {"labels": {**pod_labels(job, container), ROLE: str(role)}},
        "spec": {"restartPolicy": "Never", "subdomain": job.name, **pod},
    }
    return {
        **make_object("batch/v1", "Job", f"{job.name}-{role}", job, container, place),
        "spec": {**limit, **make_job_spec(job, count, template)},
    }


def _make_account(job: Job, container: Container, place: PodOptions) -> Iterator[Manifest]:
    """Whom the conductor runs as: somebody who may read and suspend these Jobs, and no more."""
    name = _account_of(job)
    group = "rbac.authorization.k8s.io"
    yield make_object("v1", "ServiceAccount", name, job, container, place)
    yield {
        **make_object(f"{group}/v1", "Role", name, job, container, place),
        "rules": [
            {
                "apiGroups": ["batch"],
                "resources": ["jobs"],
                "resourceNames": [f"{job.name}-{role}" for role in job.all_counts()],
                "verbs": ["get", "patch"],
            }
        ],
    }
    yield {
        **make_object(f"{group}/v1", "RoleBinding", name, job, container, place),
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": place.namespace}],
    }


def _account_of(job: Job) -> str:
    return f"{job.name}-conductor"


def _make_conductor(job: Job, container: Container, place: PodOptions) -> Manifest:
    """A Job whose success is the whole job's."""
    text = files("phalanx.launch.backends.kubernetes").joinpath("job_controller.py").read_text()
    jobs = [f"{job.name}-{role}" for role in job.all_counts()]
    main = {
        "name": "conductor",
        "image": container.image,
        "command": [container.python, "-c", escape_variables(text), f"{place.grace:g}", *jobs],
        "env": [{"name": "PHALANX_ACCOUNT", "value": _ACCOUNT}],
        "resources": {"requests": _NEEDS, "limits": _NEEDS},
    }
    failed: dict[str, Any] = {
        "action": "FailJob",
        "onExitCodes": {"operator": "In", "values": [JOB_FAILED]},
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        **make_scheduling(place),
        "serviceAccountName": place.controller_account or _account_of(job),
        "containers": [main],
    }
    labels = {**container.labels, LABEL: job.name, "phalanx.part": "conductor"}
    return {
        **make_object("batch/v1", "Job", job.name, job, container, place),
        "spec": {
            "backoffLimit": 100,
            "podFailurePolicy": {"rules": [failed, PREEMPTED]},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
