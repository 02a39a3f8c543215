"""From a job to API objects: a pure function. Their size does not depend on the number of tasks.

The pods of one Indexed Job are numbered: the chief first, then the workers, the ps, the evaluators,
and those that serve data. The Job's success policy ends everybody when the chief has succeeded, so
nobody has to watch it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.container import PORT, Container
from phalanx.launch.job import Job
from phalanx.launch.manifest import Manifest
from phalanx.launch.pods import (
    LABEL,
    Place,
    count_tasks,
    make_job_spec,
    make_object,
    make_pod,
    make_script,
    pod_labels,
    shape_variables,
)


def make_objects(job: Job, container: Container, place: Place) -> Iterator[Manifest]:
    """A Service, so that the pods find each other, and their Job."""
    _check_needs(job)
    yield {
        **make_object("v1", "Service", job.name, job, container, place),
        "spec": {
            # No address of its own, so that each pod has a name in the DNS, ready or not.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: job.name, "phalanx.part": "task"},
            "ports": [{"name": "tensorflow", "port": PORT, "targetPort": PORT}],
        },
    }
    deciding = "0" if job.chief or job.workers == 1 else f"0-{job.workers - 1}"
    limit = {"activeDeadlineSeconds": int(job.time_limit)} if job.time_limit else {}
    template = {
        "metadata": {"labels": pod_labels(job, container)},
        "spec": _pod(job, container, place),
    }
    yield {
        **make_object("batch/v1", "Job", job.name, job, container, place),
        "spec": {
            **limit,
            "successPolicy": {"rules": [{"succeededIndexes": deciding}]},
            **make_job_spec(job, len(job.all_tasks()), template),
        },
    }


def _check_needs(job: Job) -> None:
    """All pods of a Job are made from one template."""
    different = {role: job.needs(role) for role in count_tasks(job)}
    if len(set(different.values())) > 1:
        raise JobError(
            "the roles need different amounts, but the pods of a Kubernetes Job are all alike: "
            "give --cpus, --memory and --gpus without a role, or use trainjob or kubeflow"
        )


def _pod(job: Job, container: Container, place: Place) -> dict[str, Any]:
    role = Role.CHIEF if job.chief else Role.WORKER
    script, variables = make_script(job, container), shape_variables(job)
    pod = make_pod(job, container, place, role, script, variables, name="task", port="tensorflow")
    return {"restartPolicy": "Never", "subdomain": job.name, **pod}
