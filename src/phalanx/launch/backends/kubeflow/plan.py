"""From a job to a TFJob (kubeflow.org/v1): a pure function. The operator sets TF_CONFIG."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import TFConfig
from phalanx.errors import JobError
from phalanx.launch.containers.container import PORT, Container
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.pods import PodOptions, make_object, make_pod, pod_labels, quote
from phalanx.launch.placeholders import fill_with
from phalanx.launch.task_commands import evaluator_variables

# The operator looks for a container and a port of these names.
_CONTAINER = "tensorflow"
_PORT = "tfjob-port"
REPLICAS = {
    Role.CHIEF: "Chief",
    Role.WORKER: "Worker",
    Role.PS: "PS",
    Role.EVALUATOR: "Evaluator",
}


def make_objects(job: Job, container: Container, place: PodOptions) -> Iterator[Manifest]:
    """The TFJob of a job."""
    if job.data_workers:
        raise JobError(
            "a TFJob has no place for data workers: leave out --data-workers, "
            "or launch the job with trainjob or kubernetes"
        )
    limit = {"activeDeadlineSeconds": math.ceil(job.time_limit)} if job.time_limit else {}
    yield {
        **make_object("kubeflow.org/v1", "TFJob", job.name, job, container, place),
        "spec": {
            "runPolicy": {
                # What still runs when the job is over, the ps above all, is removed.
                "cleanPodPolicy": "Running",
                "backoffLimit": job.restarts,
                **limit,
            },
            # With a chief, the operator looks at that one whatever is said here.
            "successPolicy": "" if job.chief else "AllWorkers",
            "tfReplicaSpecs": {
                REPLICAS[role]: {
                    "replicas": count,
                    "restartPolicy": "OnFailure" if job.restarts else "Never",
                    "template": {
                        "metadata": {"labels": pod_labels(job, container)},
                        "spec": make_pod(
                            job,
                            container,
                            place,
                            role,
                            _script(job, container, place, role),
                            evaluator_variables(job),
                            name=_CONTAINER,
                            port=_PORT,
                            # The operator's Services name a pod only once it is ready.
                            probes={},
                        ),
                    },
                }
                for role, count in job.counts().items()
            },
        },
    }


def _script(job: Job, container: Container, place: PodOptions, role: Role) -> str:
    """Adds what the operator does not know to its TF_CONFIG, and becomes the program."""
    lines = []
    if len(job.tasks()) == 1:
        # To a single task the operator says nothing.
        [task] = job.tasks()
        cluster = Cluster({task: _address(job, place, task)})
        text = quote(TFConfig(cluster, task, model_dir=job.model_dir).dumps())
        lines.append(f"export TF_CONFIG={text}")
    elif job.model_dir:
        text = quote(f', "model_dir": {json.dumps(job.model_dir)}}}')
        lines.append(f'export TF_CONFIG="${{TF_CONFIG%?}}"{text}')
    if any("{index}" in argument for argument in job.program.arguments):
        lines.append('index=$(echo "$TF_CONFIG" | sed \'s/.*"index": *\\([0-9]*\\).*/\\1/\')')
    start = job.program.command(container.python)
    values = {"role": str(role), **_hosts(job, place)}

    def value(name: str) -> str:
        return '"$index"' if name == "index" else quote(values[name])

    filled = (fill_with(each, value, quote) for each in job.program.arguments)
    lines.append(" ".join(["exec", *map(quote, start), *filled]))
    return "\n".join(lines) + "\n"


def _address(job: Job, place: PodOptions, task: Task) -> str:
    return f"{job.name}-{task}.{place.namespace}.svc:{PORT}"


def _hosts(job: Job, place: PodOptions) -> dict[str, str]:
    """The addresses that the operator gives the tasks."""

    def hosts(role: Role) -> str:
        tasks = (task for task in job.tasks() if task.role is role)
        return ",".join(_address(job, place, task) for task in tasks)

    return {
        "chief_host": hosts(Role.CHIEF),
        "worker_hosts": hosts(Role.WORKER),
        "ps_hosts": hosts(Role.PS),
    }
