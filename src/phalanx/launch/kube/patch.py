"""Changing any part of what is rendered with a patch, by the rules of Kubernetes' strategic merge.

kind: Job
metadata: {name: digits-worker}
spec:
  template:
    spec:
      containers:
      - name: task
        securityContext: {runAsNonRoot: true}
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phalanx.errors import ConfigurationError, JobError
from phalanx.launch.kube.manifest import Manifest

# Lists whose entries are known by one of their fields; any other list is replaced whole.
_KEYS: Mapping[str, str] = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "replicatedJobs": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


COMPOSE_KEYS: Mapping[str, str] = {"volumes": "target", "secrets": "source"}
MARATHON_KEYS: Mapping[str, str] = {"apps": "id", "volumes": "containerPath"}


def merge_patches(content: Manifest, patches: Sequence[Manifest], keys: Mapping[str, str]) -> Any:
    """A file that its manager checks, with every patch applied."""
    for patch in patches:
        content = merge(content, patch, keys=keys)
    return content


def apply_patches(objects: Sequence[Manifest], patches: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """The objects with every patch applied to the one that it names, and checked."""
    patched = list(objects)
    for patch in patches:
        place = _find(patched, patch)
        patched[place] = merge(patched[place], patch)
        _check(patched[place])
    return tuple(patched)


def merge(original: Any, patch: Any, field: str = "", keys: Mapping[str, str] = _KEYS) -> Any:
    """What becomes of a value: tables are merged, null removes, all else replaces.

    >>> merge({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    >>> merge([{"name": "x", "value": "1"}], [{"name": "x", "value": "2"}], "env")
    [{'name': 'x', 'value': '2'}]
    """
    if isinstance(original, dict) and isinstance(patch, dict):
        merged = dict(original)
        for name, value in patch.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = merge(original.get(name), value, name, keys)
        return merged
    if isinstance(original, list) and isinstance(patch, list) and field in keys:
        return _merge_entries(original, patch, field, keys)
    return copy.deepcopy(patch)


def _merge_entries(
    original: list[Any], patch: list[Any], field: str, keys: Mapping[str, str]
) -> list[Any]:
    """Entries with the same key become one; `$patch: delete` removes an entry."""
    merged, key = list(original), keys[field]
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise JobError(f"a patch has an entry without {key!r}: {entry!r}")
        known = [each.get(key) for each in merged]
        place = known.index(entry[key]) if entry[key] in known else None
        if entry.get("$patch") == "delete":
            merged = [each for each in merged if each.get(key) != entry[key]]
        elif place is None:
            merged.append(copy.deepcopy(entry))
        else:
            merged[place] = merge(merged[place], entry, keys=keys)
    return merged


def _find(objects: Sequence[Manifest], patch: Manifest) -> int:
    """The place of the one object that a patch names, by kind and, if need be, by name."""
    kind = patch.get("kind") if isinstance(patch, dict) else None
    name = ((patch.get("metadata") or {}) if isinstance(patch, dict) else {}).get("name")
    found = [
        place
        for place, each in enumerate(objects)
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    ]
    if len(found) != 1:
        asked = f"{kind or 'no kind'} {name or ''}".strip()
        there = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in objects)
        raise JobError(f"a patch is for {asked}, but there are {there}: name the one that is meant")
    return found[0]


def _check(manifest: Manifest) -> None:
    """Raise a JobError if the object is no longer one that Kubernetes would take."""
    if "kubeflow.org/" in manifest["apiVersion"]:
        # Kubernetes has no schema of these; that of their pods is what a patch may get wrong.
        for template in _templates(manifest["spec"]):
            metadata = {**template.get("metadata", {}), "name": manifest["metadata"]["name"]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            _check({**pod, "spec": template["spec"]})
        return
    try:
        import kubernetes_validate  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "a patch cannot be checked: pip install 'phalanx[kubernetes]'"
        ) from None
    try:
        version = kubernetes_validate.latest_version()
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path) or "its top"
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        raise JobError(f"the patched {name} is wrong at {where}: {error.message}") from None


def _templates(part: Any) -> Iterator[Manifest]:
    """The templates of pods in an object, however deep."""
    if isinstance(part, list):
        for each in part:
            yield from _templates(each)
    elif isinstance(part, dict):
        if "containers" in part.get("spec", {}):
            yield part
        else:
            for each in part.values():
                yield from _templates(each)
