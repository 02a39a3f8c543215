"""What schemas do not catch in Kubernetes objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

Manifest = dict[str, Any]

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
BOOLEANS = {"y", "n", "yes", "no", "on", "off", "true", "false"}


def problems(text: str) -> list[str]:
    """Every problem of a file of several documents."""
    objects = list(yaml.safe_load_all(text))
    found = [problem for each in objects for problem in _problems_of(each)]
    found += _unmatched(objects)
    found += [f"{word} is a boolean to YAML 1.1" for word in _bare_booleans(text)]
    return found


def _problems_of(manifest: Manifest) -> Iterator[str]:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if not NAME.fullmatch(name):
        yield f"{kind} {name}: not a name"
    for label in manifest["metadata"].get("labels", {}):
        if not LABEL.fullmatch(label):
            yield f"{kind} {name}: {label} is not a label"
    template = manifest.get("spec", {}).get("template")
    if template is None:
        return
    pod = template["spec"]
    wanted = {"Never", "OnFailure"} if kind == "Job" else {None, "Always"}
    if pod.get("restartPolicy") not in wanted:
        yield f"{kind} {name}: restartPolicy {pod.get('restartPolicy')}"
    if kind == "Job" and "podFailurePolicy" in manifest["spec"] and pod["restartPolicy"] != "Never":
        yield f"{kind} {name}: a podFailurePolicy needs restartPolicy Never"
    selector = manifest["spec"].get("selector", {}).get("matchLabels", {})
    if not selector.items() <= template["metadata"]["labels"].items():
        yield f"{kind} {name}: the selector does not match its own pods"
    volumes = [volume["name"] for volume in pod.get("volumes", [])]
    mounted = [each["name"] for main in pod["containers"] for each in main.get("volumeMounts", [])]
    if sorted(volumes) != sorted(mounted):
        yield f"{kind} {name}: volumes {volumes}, but mounts {mounted}"
    for main in pod["containers"]:
        for amounts in main.get("resources", {}).values():
            for resource, amount in amounts.items():
                if not QUANTITY.fullmatch(str(amount)):
                    yield f"{kind} {name}: {resource} {amount} is not a quantity"
        ports = [entry["name"] for entry in main.get("ports", [])]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for check in ("tcpSocket", "httpGet"):
                port = main.get(probe, {}).get(check, {}).get("port")
                if port is not None and port not in ports:
                    yield f"{kind} {name}: {probe} asks at the port {port}"
        names = [entry["name"] for entry in main.get("env", [])]
        if len(names) != len(set(names)):
            yield f"{kind} {name}: a variable is set twice"


def _unmatched(objects: list[Manifest]) -> Iterator[str]:
    """Services and policies that select nobody, and ports that nobody has."""
    templates = [each["spec"]["template"] for each in objects if "template" in each.get("spec", {})]
    for manifest in objects:
        spec = manifest.get("spec", {})
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "Service":
            selector = spec["selector"]
        elif manifest["kind"] == "NetworkPolicy":
            selector = spec["podSelector"]["matchLabels"]
        elif manifest["kind"] == "PodDisruptionBudget":
            selector = spec["selector"]["matchLabels"]
        else:
            continue
        chosen = [
            each for each in templates if selector.items() <= each["metadata"]["labels"].items()
        ]
        if not chosen:
            yield f"{name} selects no pod"
        for port in spec.get("ports", []):
            ports = [
                value
                for template in chosen
                for main in template["spec"]["containers"]
                for entry in main.get("ports", [])
                for value in (entry["name"], entry["containerPort"])
            ]
            if port["targetPort"] not in ports:
                yield f"{name}: no container has the port {port['targetPort']}"


def _bare_booleans(text: str) -> Iterator[str]:
    """Words that are texts to a YAML 1.2 reader only; true and false are meant where they stand."""
    for line in text.splitlines():
        word = line.partition(": ")[2] or line.partition("- ")[2]
        if word.lower() in BOOLEANS - {"true", "false"}:
            yield word
