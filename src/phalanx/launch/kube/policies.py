"""The policies of a job: who may connect to its pods and where they connect, and disruptions."""

from collections.abc import Iterator

from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.metrics import make_metrics_ingress
from phalanx.launch.kube.options import Egress, PodOptions
from phalanx.launch.kube.pods import CONTROLLER, JOB, PART, make_object, task_labels

_NETWORK_POLICY = "networking.k8s.io/v1"
DNS = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
STORAGE = [{"port": 443, "protocol": "TCP"}]
# The port of the Service of the API, and the usual one behind it, which many networks check.
_API = [{"port": port, "protocol": "TCP"} for port in (443, 6443)]


def make_network_policies(
    job: Job, container: Container, options: PodOptions
) -> Iterator[Manifest]:
    """Let only the pods of the job connect to its tasks: TensorFlow authenticates nobody.

    With `egress`, the tasks connect only to each other, DNS, the storage service of their model
    directory and the targets, and the job controller only to the API.
    """
    pods = task_labels(job)
    peers = {"podSelector": {"matchLabels": pods}}
    spec: Manifest = {
        "podSelector": {"matchLabels": pods},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [peers]}, *make_metrics_ingress(options)],
    }
    if options.egress is not None:
        storage = [{"ports": STORAGE}] if "://" in (job.model_dir or "") else []
        targets = [_make_target(each) for each in options.egress if each != Egress()]
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [{"to": [peers]}, {"ports": DNS}, *storage, *targets]
    header = make_object(_NETWORK_POLICY, "NetworkPolicy", job.name, job, container, options)
    yield {**header, "spec": spec}


def make_controller_policy(
    job: Job, container: Container, options: PodOptions
) -> Iterator[Manifest]:
    """With `egress`, let the job controller connect to the API and the metrics only."""
    if options.egress is not None:
        chief = {"podSelector": {"matchLabels": task_labels(job)}}
        ports = [{"port": options.metrics_port, "protocol": "TCP"}]
        metrics = [{"to": [chief], "ports": ports}, {"ports": DNS}] if options.metrics_port else []
        name = f"{job.name}-controller"
        yield {
            **make_object(_NETWORK_POLICY, "NetworkPolicy", name, job, container, options),
            "spec": {
                "podSelector": {"matchLabels": {JOB: job.name, PART: CONTROLLER}},
                "policyTypes": ["Ingress", "Egress"],
                "egress": [{"ports": _API}, *metrics],
            },
        }


def _make_target(egress: Egress) -> Manifest:
    to = {"to": [{"ipBlock": {"cidr": egress.cidr}}]} if egress.cidr else {}
    ports = {"ports": [{"port": egress.port, "protocol": "TCP"}]} if egress.port else {}
    return {**to, **ports}


def make_disruption_budget(
    job: Job, container: Container, options: PodOptions
) -> Iterator[Manifest]:
    """With `protect`, forbid the eviction of any pod while the job runs."""
    if options.protect:
        selector = {"matchLabels": task_labels(job)}
        yield {
            **make_object("policy/v1", "PodDisruptionBudget", job.name, job, container, options),
            "spec": {"minAvailable": len(job.all_tasks()), "selector": selector},
        }
