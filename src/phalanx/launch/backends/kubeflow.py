"""The Kubeflow backend: a TFJob (kubeflow.org/v1) for Kubeflow's training operator.

The operator tells each pod which replica it is, and a script in the pod sets TF_CONFIG.
"""

import math
from collections.abc import Iterator

from phalanx.cluster.spec import Role, Task
from phalanx.errors import Interrupted, JobError
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kube import pods
from phalanx.launch.kube.handle import JobKind, failed_pods, one_object
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PodOptions
from phalanx.launch.kube.scheduling import (
    check_operator_gang,
    make_queue_labels,
    make_suspension,
)

_PREFIX = "training.kubeflow.org"
# The operator looks for a container and a port of these names.
_CONTAINER = "tensorflow"
_PORT = "tfjob-port"
# With enableDynamicWorker, the operator's TF_CONFIG says which replica a pod is, but does not name
# all others. A job of a single replica gets none.
_FIND_REPLICA = """\
name={name}
JOB_COMPLETION_INDEX=$(echo "$TF_CONFIG" | sed -n 's/.*"index": *\\([0-9]*\\).*/\\1/p')
export JOB_COMPLETION_INDEX="${{JOB_COMPLETION_INDEX:-0}}"
unset TF_CONFIG
"""
# The operator would count the exit of a task whose peer was preempted as a failure of the job. It
# ignores that of the preempted worker if it has seen before that this pod is being deleted.
_RUN = f"""\
trap 'ending=yes; kill -TERM "$task" 2>/dev/null' TERM
while true; do
    {{program}} & task=$!
    wait "$task"; code=$?
    while kill -0 "$task" 2>/dev/null; do wait "$task"; code=$?; done
    if [ -n "$ending" ]; then sleep 2; exit "$code"; fi
    if [ "$code" != {Interrupted.exit_code} ]; then exit "$code"; fi
    echo "phalanx: a task was preempted; starting again"
done
"""
REPLICAS = {Role.CHIEF: "Chief", Role.WORKER: "Worker", Role.PS: "PS", Role.EVALUATOR: "Evaluator"}


def _make_tfjob(job: Job, container: Container, options: PodOptions) -> Manifest:
    if job.data_workers:
        raise JobError(
            "a TFJob cannot run data workers: leave out --data-workers, "
            "or launch the job on trainjob or kubernetes"
        )
    check_operator_gang(options, "TFJob")
    limit = {"activeDeadlineSeconds": math.ceil(job.time_limit)} if job.time_limit else {}
    # The operator makes the group of pods, with the scheduler that it was started with.
    gang = {"schedulingPolicy": {"minAvailable": len(job.tasks())}} if options.gang else {}
    labels = {**pods.job_labels(job, container), **make_queue_labels(options)}
    return {
        **pods.make_header("kubeflow.org/v1", "TFJob", job.name, labels, options),
        "spec": {
            "runPolicy": {
                **make_suspension(options),
                # Removes the pods that still run when the job is over, such as the ps.
                "cleanPodPolicy": "Running",
                # The operator ends the job when the restarts reach this number.
                "backoffLimit": job.restarts + 1 if job.restarts else 0,
                "ttlSecondsAfterFinished": math.ceil(options.ttl),
                **limit,
                **gang,
            },
            # Otherwise a worker that is preempted would fail the job: the operator counts every pod
            # that is deleted while it runs as failed.
            "enableDynamicWorker": True,
            # If there is a chief, the operator looks at the chief whatever the policy is.
            "successPolicy": "" if job.chief else "AllWorkers",
            "tfReplicaSpecs": {
                REPLICAS[role]: {
                    "replicas": count,
                    "restartPolicy": "OnFailure" if job.restarts else "Never",
                    "template": {
                        "metadata": pods.pod_metadata(job, container, options, role),
                        "spec": pods.make_pod(
                            job,
                            container,
                            options,
                            role,
                            _make_script(job, container),
                            _make_variables(job, options, role),
                            name=_CONTAINER,
                            port=_PORT,
                            # The operator's Services resolve a pod only once it is ready.
                            probes={},
                        ),
                    },
                }
                for role, count in job.counts().items()
            },
        },
    }


def _make_script(job: Job, container: Container) -> str:
    """A script that sets TF_CONFIG from the operator's, and runs the program."""
    before = _FIND_REPLICA.format(name=pods.quote(job.name))
    return pods.make_script(job, container, before=before, run=_RUN)


def _make_variables(job: Job, options: PodOptions, role: Role) -> dict[str, str]:
    """The variables of the script; each pod has a DNS name of its own in the namespace."""
    return {**pods.role_variables(job, role), "PHALANX_SERVICE": f"{options.namespace}.svc"}


def _find_task(pod: Manifest) -> Task | None:
    labels = pod["metadata"].get("labels", {})
    role, index = labels.get(f"{_PREFIX}/replica-type"), labels.get(f"{_PREFIX}/replica-index")
    return None if role is None or index is None else Task(Role.parse(role), int(index))


class KubeflowLauncher(PodsLauncher):
    kind = JobKind(
        "TFJob",
        one_object,
        "Succeeded",
        f"{_PREFIX}/job-name=",
        _find_task,
        failed_pods,
        operator="Kubeflow's training operator",
    )
    launch_help = """
        Start the tasks of a job as the replicas of a TFJob, for Kubeflow's training operator.

        Each role can have its own --cpus, --memory and --gpus. PROGRAM is a path in the image.
        Needs the extra phalanx[kubernetes], except with --dry-run, whose output is for
        kubectl apply -f -.

        Example:
          phalanx launch kubeflow --image digits:1 --workers 4 --ps 2 --cpus 4 \\
              --gpus chief=1 --gpus worker=1 --model-dir gs://bucket/digits \\
              --credentials key.json train.py
    """

    def make_objects(self, job: Job) -> Iterator[Manifest]:
        yield _make_tfjob(job, self.container, self.options)
