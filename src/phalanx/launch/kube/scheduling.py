"""Where and when pods run: nodes, priorities, queues, and groups that start together."""

from collections.abc import Iterator, Mapping

from phalanx.errors import JobError
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import QUEUE, Gang, PodOptions

_API = {
    Gang.KUBERNETES: "scheduling.k8s.io/v1beta1",
    Gang.COSCHEDULING: "scheduling.x-k8s.io/v1alpha1",
    Gang.VOLCANO: "scheduling.volcano.sh/v1beta1",
}


def make_scheduling(options: PodOptions) -> Manifest:
    """Make the part of a pod that says on which nodes, and as which account, it runs."""
    tolerations = [
        {
            "key": each.key,
            "operator": "Exists" if each.value is None else "Equal",
            **({} if each.value is None else {"value": each.value}),
            "effect": each.effect,
        }
        for each in options.tolerations
    ]
    volcano = "volcano" if options.gang is Gang.VOLCANO else None
    chosen = {
        "schedulerName": options.scheduler or volcano,
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
        "nodeSelector": dict(options.node_selector),
        "tolerations": tolerations,
    }
    return {name: value for name, value in chosen.items() if value}


def make_queue_labels(options: PodOptions) -> dict[str, str]:
    """Return the label by which Kueue finds an object of a queue."""
    return {QUEUE: options.queue} if options.queue else {}


def make_suspension(options: PodOptions) -> Manifest:
    """Make the part of a Job that lets it wait until Kueue admits it."""
    return {"suspend": True} if options.queue else {}


def make_pod_group(
    name: str, count: int, labels: Mapping[str, str], options: PodOptions
) -> Iterator[Manifest]:
    """Make the group of pods that start together, if there is one."""
    if options.gang is None:
        return
    gang = {"schedulingPolicy": {"gang": {"minCount": count}}}
    metadata = {"name": name, "namespace": options.namespace, "labels": dict(labels)}
    spec = gang if options.gang is Gang.KUBERNETES else {"minMember": count}
    api = _API[options.gang]
    yield {"apiVersion": api, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def join_pod_group(name: str, template: Manifest, options: PodOptions) -> Manifest:
    """Return the template of a pod that belongs to the group."""
    metadata, spec = template["metadata"], template["spec"]
    if options.gang is Gang.KUBERNETES:
        return {**template, "spec": {**spec, "schedulingGroup": {"podGroupName": name}}}
    if options.gang is Gang.COSCHEDULING:
        labels = {**metadata["labels"], "scheduling.x-k8s.io/pod-group": name}
        return {**template, "metadata": {**metadata, "labels": labels}}
    if options.gang is Gang.VOLCANO:
        annotations = {"scheduling.k8s.io/group-name": name}
        return {**template, "metadata": {**metadata, "annotations": annotations}}
    return template


def check_operator_gang(options: PodOptions, kind: str) -> None:
    """Raise a JobError for a scheduler that the operator of this kind does not support."""
    if options.gang is Gang.KUBERNETES:
        raise JobError(
            f"the operator of a {kind} cannot use --gang kubernetes: use coscheduling or volcano, "
            "or phalanx launch kubernetes"
        )
