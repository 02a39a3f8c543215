"""Admission of pods: the Pod Security Standard, quotas and service accounts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.launch.pod_security import violations

if TYPE_CHECKING:
    from tests.servers.kubernetes.cluster import Kubernetes

Manifest = dict[str, Any]
_UNITS = {"": 1.0, "m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def refusal(cluster: Kubernetes, template: Manifest) -> str:
    """Return why the API server refuses a pod, in its words, or an empty text."""
    spec = template["spec"]
    account = spec.get("serviceAccountName")
    if account and ("ServiceAccount", account) not in cluster.objects:
        return (
            f"error looking up service account default/{account}: "
            f'serviceaccount "{account}" not found'
        )
    broken = violations(spec)
    if cluster.restricted and broken:
        return f'violates PodSecurity "restricted:latest": {", ".join(broken)}'
    if cluster.quota:
        return cluster.quota
    return next(_exceeded(cluster, spec), "")


def _exceeded(cluster: Kubernetes, spec: Manifest) -> Iterator[str]:
    """Yield how a pod exceeds a ResourceQuota, which also demands the requests that it limits."""
    for (kind, name), quota in cluster.objects.items():
        if kind != "ResourceQuota":
            continue
        for resource, hard in quota["spec"]["hard"].items():
            prefixed = resource.startswith(("requests.", "limits."))
            side, _, amount = (resource if prefixed else f"requests.{resource}").partition(".")
            if resource == "pods":
                asked, used = 1.0, float(sum(each.process.poll() is None for each in cluster.pods))
            else:
                asked = 0.0
                for main in spec["containers"]:
                    given = main.get("resources", {}).get(side, {}).get(amount)
                    # Of processors and memory only, each container must say what it needs.
                    if given is None and amount in ("cpu", "memory"):
                        yield f"failed quota: {name}: must specify {resource} for: {main['name']}"
                    asked += parse(given or "0")
                used = sum(parse(each.uses(side).get(amount, "0")) for each in cluster.pods)
            if asked + used > parse(hard):
                yield (
                    f"exceeded quota: {name}, requested: {resource}={asked:g}, "
                    f"used: {resource}={used:g}, limited: {resource}={hard}"
                )


def parse(quantity: str) -> float:
    """Return a quantity, such as 500m or 2Gi, as a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", str(quantity))
    assert match, quantity
    return float(match[1]) * _UNITS[match[2]]
