"""From a job to a TrainJob (trainer.kubeflow.org/v1alpha1) and its TrainingRuntime: pure functions.

Trainer has no policy for TensorFlow. The runtime brings one: a JobSet with an Indexed Job for each
role, whose pods find out from their index, in a few lines of `sh`, what TF_CONFIG has to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from phalanx.cluster.spec import Role
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.pods import (
    PodOptions,
    make_job_spec,
    make_object,
    make_pod,
    make_probes,
    make_script,
    pod_labels,
    role_variables,
)

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
# Trainer counts the pods of the job with this label as its nodes, and knows their container so.
_ANCESTOR = {f"{GROUP}/trainjob-ancestor-step": "trainer"}
_CONTAINER = "node"
_PORT = "tensorflow"


def make_objects(job: Job, container: Container, place: PodOptions) -> Iterator[Manifest]:
    """The runtime, and the TrainJob that refers to it."""
    api = f"{GROUP}/{VERSION}"
    deciding = Role.CHIEF if job.chief else Role.WORKER
    nodes = job.counts()[deciding]
    jobs = [
        _replicated_job(job, container, place, role, count, role is deciding)
        for role, count in job.all_counts().items()
    ]
    yield {
        **make_object(api, "TrainingRuntime", job.name, job, container, place),
        "spec": {
            "mlPolicy": {"numNodes": nodes},
            "template": {
                "spec": {
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    # With this role all are done; what still runs, the ps above all, is removed.
                    "successPolicy": {"operator": "All", "targetReplicatedJobs": [str(deciding)]},
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": jobs,
                }
            },
        },
    }
    yield {
        **make_object(api, "TrainJob", job.name, job, container, place),
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": job.name},
            "trainer": {"numNodes": nodes},
        },
    }


def _replicated_job(
    job: Job, container: Container, place: PodOptions, role: Role, count: int, decides: bool
) -> dict[str, Any]:
    pod = make_pod(
        job,
        container,
        place,
        role,
        # A JobSet numbers the Jobs of a role; here it has one.
        make_script(job, container, between="-0-"),
        role_variables(job, role),
        name=_CONTAINER,
        port=_PORT,
        probes=make_probes(job, role, _PORT),
    )
    template = {
        "metadata": {"labels": pod_labels(job, container)},
        "spec": {"restartPolicy": "Never", **pod},
    }
    limited = decides and job.time_limit
    limit = {"activeDeadlineSeconds": math.ceil(job.time_limit or 0)} if limited else {}
    return {
        "name": str(role),
        "replicas": 1,
        "template": {
            **({"metadata": {"labels": _ANCESTOR}} if decides else {}),
            "spec": {**limit, **make_job_spec(job, count, template)},
        },
    }
