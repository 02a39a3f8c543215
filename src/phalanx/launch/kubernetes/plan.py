"""From a job to API objects: a pure function. Their size does not depend on the number of tasks.

The pods of one Indexed Job are numbered: the chief first, then the workers, the ps, the evaluators,
and those that serve data. The Job's success policy ends everybody when the chief has succeeded, so
nobody has to watch it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from phalanx.cluster.shape import VARIABLE as SHAPE
from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.container import PORT, Container
from phalanx.launch.job import Job
from phalanx.launch.manifest import Manifest
from phalanx.launch.patch import apply_patches
from phalanx.launch.placeholders import check_placeholders, fill_with
from phalanx.launch.pods import (
    LABEL,
    ObjectsPlan,
    Place,
    make_credentials,
    make_network_policy,
    make_object,
    make_pod,
    make_tensorboard,
    quote,
)


def plan_objects(job: Job, container: Container, place: Place) -> ObjectsPlan:
    """The objects of a job."""
    job.validate()
    container.validate(job)
    check_placeholders(job.program.arguments)
    _check_needs(job)
    objects = [
        *make_credentials(job, container, place),
        make_network_policy(job, container, place),
        *_surroundings(job, container, place),
        _job(job, container, place),
        *make_tensorboard(job, container, place),
    ]
    patched = apply_patches(objects, place.patches)
    return ObjectsPlan(job.name, place.namespace, patched, tuple(_counts(job).items()))


def _counts(job: Job) -> dict[Role, int]:
    """The pods of each role, in the order in which they are numbered."""
    return dict(Counter(task.role for task in job.all_tasks()))


def _check_needs(job: Job) -> None:
    """All pods of a Job are made from one template."""
    different = {role: job.needs(role) for role in _counts(job)}
    if len(set(different.values())) > 1:
        raise JobError(
            "the roles need different amounts, but the pods of a Kubernetes Job are all alike: "
            "give --cpus, --memory and --gpus without a role, or use kubeflow"
        )


def _surroundings(job: Job, container: Container, place: Place) -> Iterator[Manifest]:
    """What the pods need to find each other, and to stay where they are."""
    pods = {LABEL: job.name, "phalanx.part": "task"}
    yield {
        **make_object("v1", "Service", job.name, job, container, place),
        "spec": {
            # No address of its own, so that each pod has a name in the DNS, ready or not.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": pods,
            "ports": [{"name": "tensorflow", "port": PORT, "targetPort": PORT}],
        },
    }
    if place.protect:
        yield {
            **make_object("policy/v1", "PodDisruptionBudget", job.name, job, container, place),
            "spec": {
                "minAvailable": len(job.all_tasks()),
                "selector": {"matchLabels": pods},
            },
        }


def _job(job: Job, container: Container, place: Place) -> Manifest:
    count = len(job.all_tasks())
    deciding = "0" if job.chief or job.workers == 1 else f"0-{job.workers - 1}"
    limit = {"activeDeadlineSeconds": int(job.time_limit)} if job.time_limit else {}
    return {
        **make_object("batch/v1", "Job", job.name, job, container, place),
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
    environment = {
        SHAPE: ",".join(f"{role}={count}" for role, count in _counts(job).items()),
        "PHALANX_SERVICE": job.name,
        "PHALANX_PORT": str(PORT),
    }
    role = Role.CHIEF if job.chief else Role.WORKER
    script = _script(job, container)
    pod = make_pod(job, container, place, role, script, environment, name="task", port="tensorflow")
    return {"restartPolicy": "Never", "subdomain": job.name, **pod}


def _script(job: Job, container: Container) -> str:
    """The shell finds out which task the pod is, and becomes the program."""
    model_dir = f', "model_dir": {json.dumps(job.model_dir)}' if job.model_dir else ""
    start = job.program.start(container.python)
    filled = (fill_with(each, lambda name: f'"${name}"', quote) for each in job.program.arguments)
    body = files("phalanx.launch.kubernetes").joinpath("task.sh").read_text()
    last = " ".join(["exec", *map(quote, start), *filled])
    python = f"python={quote(container.python)}\n" if job.data_workers else ""
    return f"model_dir={quote(model_dir)}\n{python}{body}{last}\n"
