"""The Kubeflow backend: a TFJob (kubeflow.org/v1) for Kubeflow's training operator.

The operator sets TF_CONFIG.
"""

import json
import math
from collections.abc import Iterator

from phalanx.cluster.spec import Role, Task
from phalanx.cluster.tf_config import Environment, TFConfig
from phalanx.errors import Interrupted, JobError
from phalanx.launch.containers.container import PORT, Container
from phalanx.launch.guarded import guard_prefix
from phalanx.launch.job import Job
from phalanx.launch.kube.handle import JobKind, failed_pods, one_object
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PodOptions
from phalanx.launch.kube.pods import job_labels, make_header, make_pod, pod_metadata, quote
from phalanx.launch.kube.scheduling import (
    check_operator_gang,
    make_queue_labels,
    make_suspension,
)
from phalanx.launch.placeholders import fill, fill_with
from phalanx.launch.task_commands import RENAME_CHIEF, evaluator_variables

_PREFIX = "training.kubeflow.org"
# The operator looks for a container and a port of these names.
_CONTAINER = "tensorflow"
_PORT = "tfjob-port"
# The operator would count the exit of a task whose peer was preempted as a failure of the job.
_RUN = f"""\
trap 'ending=yes; kill -TERM "$task"' TERM
while true; do
    {{program}} & task=$!
    wait "$task"; code=$?
    while kill -0 "$task" 2>/dev/null; do wait "$task"; code=$?; done
    if [ "$code" != {Interrupted.exit_code} ] || [ -n "$ending" ]; then exit "$code"; fi
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
    labels = {**job_labels(job, container), **make_queue_labels(options)}
    return {
        **make_header("kubeflow.org/v1", "TFJob", job.name, labels, options),
        "spec": {
            "runPolicy": {
                **make_suspension(options),
                # Removes the pods that still run when the job is over, such as the ps.
                "cleanPodPolicy": "Running",
                "backoffLimit": job.restarts,
                "ttlSecondsAfterFinished": math.ceil(options.ttl),
                **limit,
                **gang,
            },
            # If there is a chief, the operator looks at the chief whatever the policy is.
            "successPolicy": "" if job.chief else "AllWorkers",
            "tfReplicaSpecs": {
                REPLICAS[role]: {
                    "replicas": count,
                    "restartPolicy": "OnFailure" if job.restarts else "Never",
                    "template": {
                        "metadata": pod_metadata(job, container, options, role),
                        "spec": make_pod(
                            job,
                            container,
                            options,
                            role,
                            _make_script(job, container, options, role),
                            evaluator_variables(job),
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


def _make_script(job: Job, container: Container, options: PodOptions, role: Role) -> str:
    """A script that completes the operator's TF_CONFIG and runs the program."""
    lines = []
    suffix = f"{options.namespace}.svc:{PORT}"
    cluster = job.cluster({task: f"{job.name}-{task}.{suffix}" for task in job.listening_tasks()})
    if len(job.tasks()) == 1:
        # The operator sets no TF_CONFIG for a job of a single task.
        [task] = job.tasks()
        environment: Environment = "cloud" if job.master else "local"
        config = TFConfig(
            cluster, task, model_dir=job.model_dir, environment=environment, master=job.master
        )
        text = quote(config.dumps())
        lines.append(f"export TF_CONFIG={text}")
    elif job.model_dir:
        text = quote(f', "model_dir": {json.dumps(job.model_dir)}}}')
        lines.append(f'export TF_CONFIG="${{TF_CONFIG%?}}"{text}')
    if job.master and len(job.tasks()) > 1:
        lines.append(RENAME_CHIEF.rstrip())
    if any("{index}" in argument for argument in job.program.arguments):
        lines.append('index=$(echo "$TF_CONFIG" | sed \'s/.*"index": *\\([0-9]*\\).*/\\1/\')')
    start = (*guard_prefix(job, container.python), *job.program.command(container.python))

    def value(name: str) -> str:
        return '"$index"' if name == "index" else quote(fill(f"{{{name}}}", Task(role), cluster))

    filled = (fill_with(each, value, quote) for each in job.program.arguments)
    lines.append(_RUN.format(program=" ".join([*map(quote, start), *filled])))
    return "\n".join(lines)


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
