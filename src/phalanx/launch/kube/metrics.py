"""Metrics for Prometheus on Kubernetes: the chief's pod serves them, and says so.

The guard opens the port in the pod, and the NetworkPolicy says who reaches it.
"""

from collections.abc import Mapping

from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PodOptions
from phalanx.metrics_endpoint import HOST_VARIABLE, PORT_VARIABLE

_GUARD_OPEN = "PHALANX_GUARD_OPEN"


def check_metrics(job: Job, options: PodOptions) -> None:
    """Raise a JobError if the job has no chief, whose pod is the only one with metrics."""
    if options.metrics_port is not None and not job.chief:
        raise JobError(
            "--metrics-port needs a chief, because the pods of all workers are alike and only "
            "worker 0 would have metrics: leave out --no-chief, or pass --metrics-port to the "
            "program"
        )


def serves_metrics(role: Role, options: PodOptions) -> bool:
    return options.metrics_port is not None and role is Role.CHIEF


def metrics_variables(job: Job, role: Role, options: PodOptions) -> Mapping[str, str]:
    """Return the variables that let the program serve metrics, and the guard let clients in."""
    if not serves_metrics(role, options):
        return {}
    port = str(options.metrics_port)
    opened = [each for each in (job.environment.get(_GUARD_OPEN), port) if each]
    return {PORT_VARIABLE: port, HOST_VARIABLE: "::", _GUARD_OPEN: ",".join(opened)}


def make_metrics_annotations(role: Role, options: PodOptions) -> Manifest:
    """Make the annotations by which a usual configuration of Prometheus finds pods."""
    if not serves_metrics(role, options):
        return {}
    return {
        "annotations": {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(options.metrics_port),
            "prometheus.io/path": "/metrics",
        }
    }


def make_metrics_ports(role: Role, options: PodOptions) -> list[Manifest]:
    if not serves_metrics(role, options):
        return []
    return [{"name": "metrics", "containerPort": options.metrics_port}]


def make_metrics_ingress(options: PodOptions) -> list[Manifest]:
    """Make the rule that lets pods read the metrics: those of some namespaces."""
    if options.metrics_port is None:
        return []
    clients: list[Manifest] = [{"podSelector": {}}]
    for namespace in options.metrics_from:
        label = {"kubernetes.io/metadata.name": namespace}
        clients.append({"namespaceSelector": {"matchLabels": label}})
    return [{"from": clients, "ports": [{"port": options.metrics_port, "protocol": "TCP"}]}]
