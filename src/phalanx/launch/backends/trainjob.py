"""The TrainJob backend: a TrainJob (trainer.kubeflow.org/v1alpha1) and its TrainingRuntime.

Kubeflow Trainer has no policy for TensorFlow. The runtime is a JobSet with an Indexed Job for each
role. Each pod computes TF_CONFIG from its index, in a few lines of `sh`.
"""

import math
from collections.abc import Iterator

from phalanx.cluster.spec import Role, Task
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kube import pods
from phalanx.launch.kube.handle import INDEX, JobKind, failed_pods, one_object
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PODS, PodOptions
from phalanx.launch.kube.scheduling import (
    check_operator_gang,
    make_queue_labels,
    make_suspension,
)
from phalanx.launch.options import Option

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
_JOB_SET = "jobset.sigs.k8s.io"
# Trainer counts the pods of the Job with this label as nodes, and finds the container by its name.
_ANCESTOR = {f"{GROUP}/trainjob-ancestor-step": "trainer"}
_CONTAINER = "node"


def _make_objects(job: Job, container: Container, options: PodOptions) -> Iterator[Manifest]:
    api = f"{GROUP}/{VERSION}"
    deciding = Role.CHIEF if job.chief else Role.WORKER
    nodes = job.counts()[deciding]
    jobs = [
        _make_replicated_job(job, container, options, role, count, role is deciding)
        for role, count in job.all_counts().items()
    ]
    check_operator_gang(options, "TrainJob")
    gang: Manifest = {"podGroupPolicy": {options.gang.value: {}}} if options.gang else {}
    yield {
        **pods.make_object(api, "TrainingRuntime", job.name, job, container, options),
        "spec": {
            "mlPolicy": {"numNodes": nodes},
            **gang,
            "template": {
                "spec": {
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    # When this role succeeds, the pods that still run, such as the ps, are removed.
                    "successPolicy": {"operator": "All", "targetReplicatedJobs": [str(deciding)]},
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": jobs,
                }
            },
        },
    }
    labels = {**pods.job_labels(job, container), **make_queue_labels(options)}
    yield {
        **pods.make_header(api, "TrainJob", job.name, labels, options),
        "spec": {
            **make_suspension(options),
            "runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": job.name},
            "trainer": {"numNodes": nodes},
        },
    }


def _make_replicated_job(
    job: Job, container: Container, options: PodOptions, role: Role, count: int, decides: bool
) -> Manifest:
    # A JobSet numbers the Jobs of a role, and each role has one.
    pod = pods.make_indexed_pod(job, container, options, role, _CONTAINER, between="-0-")
    template = {
        "metadata": pods.pod_metadata(job, container, options, role),
        "spec": {"restartPolicy": "Never", **pod},
    }
    limited = decides and job.time_limit
    limit = {"activeDeadlineSeconds": math.ceil(job.time_limit or 0)} if limited else {}
    return {
        "name": str(role),
        "replicas": 1,
        "template": {
            **({"metadata": {"labels": _ANCESTOR}} if decides else {}),
            "spec": {**limit, **pods.make_job_spec(job, count, template)},
        },
    }


def _find_task(pod: Manifest) -> Task | None:
    role = pod["metadata"].get("labels", {}).get(f"{_JOB_SET}/replicatedjob-name")
    index = pod["metadata"].get("annotations", {}).get(INDEX)
    return None if role is None or index is None else Task(Role(role), int(index))


class TrainJobLauncher(PodsLauncher):
    kind = JobKind(
        "TrainJob",
        one_object,
        "Complete",
        f"{_JOB_SET}/jobset-name=",
        _find_task,
        failed_pods,
        operator="Kubeflow Trainer",
        oldest=(1, 33),
    )
    launch_help = """
        Start the tasks of a job as a TrainJob, for Kubeflow Trainer 2.

        The TrainJob has a TrainingRuntime of its own, which sets TF_CONFIG. Each role can have its
        own --cpus, --memory and --gpus. PROGRAM is a path in the image. Needs the extra
        phalanx[kubernetes], except with --dry-run, whose output is for kubectl apply -f -.

        Example:
          phalanx launch trainjob --image digits:1 --workers 4 --ps 2 --cpus 4 \\
              --gpus chief=1 --gpus worker=1 --model-dir gs://bucket/digits \\
              --credentials key.json train.py
    """

    launch_options = (
        *(each for each in PODS if each.flag != "--ttl"),
        Option(
            "--ttl",
            refusal="cannot delete a TrainJob that is over, because Kubeflow Trainer does not: "
            "leave out --ttl, and delete it with phalanx cancel",
        ),
    )

    def make_objects(self, job: Job) -> Iterator[Manifest]:
        return _make_objects(job, self.container, self.options)
