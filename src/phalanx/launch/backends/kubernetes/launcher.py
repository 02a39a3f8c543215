"""The Kubernetes backend: an Indexed Job for each role, and no operator.

The number of objects does not depend on the number of tasks: each pod finds out from its index
which task it is. The chief's Job decides how the job ends or, without a chief, the workers' Job.
If there are several Jobs, one more pod runs the job controller, which ends them together.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files

from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.kubernetes.job_controller import JOB_FAILED
from phalanx.launch.containers.container import PORT, Container
from phalanx.launch.job import Job
from phalanx.launch.kube import pods
from phalanx.launch.kube.handle import INDEX, JobKind, Pods
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PODS, PodOptions
from phalanx.launch.kube.policies import make_controller_policy
from phalanx.launch.kube.scheduling import (
    join_pod_group,
    make_pod_group,
    make_queue_labels,
    make_scheduling,
    make_suspension,
)
from phalanx.launch.kube.security import make_container_security, make_pod_security
from phalanx.launch.options import LINGERS, Option
from phalanx.launch.termination import SERVERS
from phalanx.launch.values import parse_cpus, parse_size

_TOKEN_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
# The job controller must have seen how a Job ended before the cluster deletes it.
_LEAST_TTL_SECONDS = 3600


def _make_objects(job: Job, container: Container, options: PodOptions) -> Iterator[Manifest]:
    roles = job.all_counts()
    yield {
        **pods.make_object("v1", "Service", job.name, job, container, options),
        "spec": {
            # A headless Service, so that each pod has a DNS name, ready or not.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": pods.task_labels(job),
            "ports": [{"name": pods.PORT_NAME, "port": PORT, "targetPort": PORT}],
        },
    }
    several = len(roles) > 1
    if several and options.controller_account is None:
        yield from _make_account(job, container, options)
    labels = pods.job_labels(job, container)
    yield from make_pod_group(job.name, len(job.all_tasks()), labels, options)
    for role, count in roles.items():
        yield _make_job(job, container, options, role, count, several)
    if several:
        yield from make_controller_policy(job, container, options)
        yield _make_controller(job, container, options)


def _job_names(name: str, roles: Iterable[Role]) -> list[str]:
    """The Jobs of a job. The first one tells how the job ended."""
    names = [f"{name}-{role}" for role in roles]
    return [name, *names] if len(names) > 1 else names


def _make_job(
    job: Job, container: Container, options: PodOptions, role: Role, count: int, several: bool
) -> Manifest:
    limit = {"activeDeadlineSeconds": math.ceil(job.time_limit)} if job.time_limit else {}
    pod = pods.make_indexed_pod(job, container, options, role, "task")
    template = {
        "metadata": pods.pod_metadata(job, container, options, role),
        "spec": {"restartPolicy": "Never", "subdomain": job.name, **pod},
    }
    template = join_pod_group(job.name, template, options)
    ttl = max(options.ttl, _LEAST_TTL_SECONDS) if several else options.ttl
    labels = {**pods.job_labels(job, container), **make_queue_labels(options)}
    return {
        **pods.make_header("batch/v1", "Job", f"{job.name}-{role}", labels, options),
        "spec": {
            **make_suspension(options),
            **limit,
            "ttlSecondsAfterFinished": math.ceil(ttl),
            **pods.make_job_spec(job, count, template),
        },
    }


def _make_account(job: Job, container: Container, options: PodOptions) -> Iterator[Manifest]:
    """A service account for the job controller, which may only read and patch these Jobs."""
    name = _account_name(job)
    group = "rbac.authorization.k8s.io"
    yield pods.make_object("v1", "ServiceAccount", name, job, container, options)
    yield {
        **pods.make_object(f"{group}/v1", "Role", name, job, container, options),
        "rules": [
            {
                "apiGroups": ["batch"],
                "resources": ["jobs"],
                "resourceNames": [
                    *([job.name] if options.metrics_port else []),
                    *(f"{job.name}-{role}" for role in job.all_counts()),
                ],
                "verbs": ["get", "patch"],
            }
        ],
    }
    yield {
        **pods.make_object(f"{group}/v1", "RoleBinding", name, job, container, options),
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": options.namespace}],
    }


def _account_name(job: Job) -> str:
    return f"{job.name}-controller"


def _make_controller(job: Job, container: Container, options: PodOptions) -> Manifest:
    """A Job that succeeds when the whole job does."""
    source = files("phalanx.launch.backends.kubernetes").joinpath("job_controller.py").read_text()
    script = pods.escape_variables(source)
    periods = options.grace_periods
    lingers = {Role.WORKER: periods.linger, Role.EVALUATOR: periods.evaluator_linger}
    jobs = [
        f"{job.name}-{role}={-1 if role in SERVERS else lingers.get(role, 0):g}"
        for role in job.all_counts()
    ]
    # Kueue would resume a Job that somebody else has suspended.
    method = "deadline" if options.queue else "suspend"
    main = {
        "name": "controller",
        "image": container.image,
        "command": [container.python, "-c", script, method, f"{periods.grace:g}", *jobs],
        "env": [
            {"name": "PHALANX_ACCOUNT", "value": _TOKEN_DIRECTORY},
            *_make_progress_variables(job, options),
        ],
        **pods.make_resources(options.controller_needs),
        **make_container_security(read_only=True),
    }
    failed = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [JOB_FAILED]}}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        **make_pod_security(options.run_as_user, options.fs_group),
        **make_scheduling(replace(options, gang=None)),
        **pods.make_pull_secrets(options),
        "serviceAccountName": options.controller_account or _account_name(job),
        "containers": [main],
    }
    labels = {**pods.job_labels(job, container, pods.CONTROLLER), pods.PART: pods.CONTROLLER}
    return {
        **pods.make_object("batch/v1", "Job", job.name, job, container, options),
        "spec": {
            "backoffLimit": 100,
            "ttlSecondsAfterFinished": math.ceil(options.ttl),
            "podFailurePolicy": {"rules": [failed, pods.PREEMPTED]},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _make_progress_variables(job: Job, options: PodOptions) -> Iterator[Manifest]:
    """Tell the job controller where the metrics are, and which Job it annotates with them."""
    if options.metrics_port is not None:
        # Metrics are refused under a name that could be in a public domain.
        host = f"{job.name}-chief-0.{job.name}.{options.namespace}.svc"
        url = f"http://{host}:{options.metrics_port}/metrics"
        yield {"name": "PHALANX_METRICS_URL", "value": url}
        yield {"name": "PHALANX_PROGRESS_JOB", "value": job.name}


def _find_task(pod: Manifest) -> Task | None:
    role = pod["metadata"].get("labels", {}).get(pods.ROLE)
    index = pod["metadata"].get("annotations", {}).get(INDEX)
    return None if role is None or index is None else Task(Role(role), int(index))


def _find_failed(jobs: Sequence[Manifest], tasks: Sequence[Task], found_pods: Pods) -> list[Task]:
    """The tasks that a Job lists as failed: `1,3-5` are 1, 3, 4 and 5."""
    found: list[Task] = []
    for job in jobs:
        role = job["spec"]["template"]["metadata"]["labels"].get(pods.ROLE)
        for part in filter(None, job.get("status", {}).get("failedIndexes", "").split(",")):
            first, _, last = part.partition("-")
            found += [Task(Role(role), n) for n in range(int(first), int(last or first) + 1)]
    return found


class KubernetesLauncher(PodsLauncher):
    """Creates an Indexed Job for each role. Kubernetes' own controllers do the rest."""

    kind = JobKind(
        "Job",
        _job_names,
        "Complete",
        f"{pods.PART}=task,{pods.JOB}=",
        _find_task,
        _find_failed,
        oldest=(1, 33),
    )
    launch_help = """
        Start the tasks of a job as pods: an Indexed Job for each role.

        Each role can have its own --cpus, --memory and --gpus. PROGRAM is a path in the image.
        Needs the extra phalanx[kubernetes] and Kubernetes 1.33 or newer. --dry-run needs neither;
        its output is for kubectl apply -f -.

        Example:
          phalanx launch kubernetes --image digits:1 --workers 4 --ps 2 --cpus 4 \\
              --gpus chief=1 --gpus worker=1 --model-dir gs://bucket/digits \\
              --credentials key.json train.py
    """
    launch_options = (
        *PODS,
        Option(
            "--controller-account",
            "A service account that may get and patch Jobs  [default: one is created]",
            metavar="NAME",
            aliases=("--conductor-account",),
        ),
        Option(
            "--controller-cpus",
            "The processors of the job controller  [default: 0.1]",
            parse_cpus,
            "N",
        ),
        Option(
            "--controller-memory",
            "The memory of the job controller  [default: 128M]",
            parse_size,
            "SIZE",
        ),
        *LINGERS,
    )

    def make_objects(self, job: Job) -> Iterator[Manifest]:
        return _make_objects(job, self.container, self.options)
