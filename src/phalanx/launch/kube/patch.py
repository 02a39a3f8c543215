"""Patches for rendered objects, with the rules of Kubernetes' strategic merge patch.

kind: Job
metadata: {name: digits-worker}
spec:
  template:
    spec:
      containers:
      - name: task
        imagePullPolicy: Always
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from phalanx.errors import ConfigurationError, JobError
from phalanx.launch.kube.manifest import Manifest

Json: TypeAlias = object
"""A JSON value: a dictionary, a list, a string, a number, a boolean or None."""

# Lists whose entries are identified by a field; any other list is replaced as a whole.
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


def merge_patches(
    content: Manifest, patches: Sequence[Manifest], keys: Mapping[str, str]
) -> Manifest:
    """Apply every patch to a file; its backend checks the result."""
    for patch in patches:
        content = _merge_objects(content, patch, keys)
    return content


def apply_patches(objects: Sequence[Manifest], patches: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """Apply every patch to the objects of its kind, or to the one it names; check the results."""
    patched = list(objects)
    for patch in patches:
        for index in _find(patched, patch):
            patched[index] = _merge_objects(patched[index], patch, _KEYS)
            _check(patched[index])
    return tuple(patched)


def merge(original: Json, patch: Json, field: str = "", keys: Mapping[str, str] = _KEYS) -> Json:
    """Merge a value and its patch: objects are merged, null removes, all else replaces."""
    if isinstance(original, dict) and isinstance(patch, dict):
        return _merge_objects(original, patch, keys)
    if isinstance(original, list) and isinstance(patch, list) and field in keys:
        return _merge_entries(original, patch, field, keys)
    return copy.deepcopy(patch)


def _merge_objects(original: Manifest, patch: Manifest, keys: Mapping[str, str]) -> Manifest:
    merged = dict(original)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(original.get(name), value, name, keys)
    return merged


def _merge_entries(
    original: list[Manifest], patch: list[Manifest], field: str, keys: Mapping[str, str]
) -> list[Manifest]:
    """Merge the entries that have the same key; `$patch: delete` removes an entry."""
    merged, key = list(original), keys[field]
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise JobError(f"a patch has an entry without {key!r}: {entry!r}")
        known = [each.get(key) for each in merged]
        index = known.index(entry[key]) if entry[key] in known else None
        if entry.get("$patch") == "delete":
            merged = [each for each in merged if each.get(key) != entry[key]]
        elif index is None:
            merged.append(copy.deepcopy(entry))
        else:
            merged[index] = _merge_objects(merged[index], entry, keys)
    return merged


def _find(objects: Sequence[Manifest], patch: Manifest) -> list[int]:
    """Return the indices of the objects that a patch is for.

    A patch without a name is for all objects of its kind that have the containers it changes: one
    for the container `task` concerns the Jobs of all roles, and not that of the job controller.
    """
    kind = patch.get("kind") if isinstance(patch, dict) else None
    name = ((patch.get("metadata") or {}) if isinstance(patch, dict) else {}).get("name")
    found = [
        index
        for index, each in enumerate(objects)
        if each["kind"] == kind
        and (name == each["metadata"]["name"] or (name is None and _has_containers(each, patch)))
    ]
    if not found:
        same = [each for each in objects if each["kind"] == kind]
        if same and name is None:
            wanted = ", ".join(sorted(_container_names(patch)))
            known = ", ".join(sorted(set().union(*map(_container_names, same)))) or "none"
            raise JobError(f"a patch is for the container {wanted}, which no {kind} has: there are "
                           f"{known}")  # fmt: skip
        asked = f"{kind or 'no kind'} {name or ''}".strip()
        names = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in objects)
        raise JobError(f"a patch is for {asked}, but there are {names}: name one of these objects")
    return found


def _has_containers(manifest: Manifest, patch: Manifest) -> bool:
    return _container_names(patch) <= _container_names(manifest)


def _container_names(manifest: Manifest) -> set[str]:
    return {
        str(main.get("name"))
        for template in _templates(manifest.get("spec"))
        for main in template["spec"]["containers"]
        if isinstance(main, dict)
    }


def _check(manifest: Manifest) -> None:
    if "kubeflow.org/" in manifest["apiVersion"]:
        # Kubernetes has no schema for custom resources, but one for the pods inside them.
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


def _templates(part: Json) -> Iterator[Manifest]:
    if isinstance(part, list):
        for each in part:
            yield from _templates(each)
    elif isinstance(part, dict):
        if "containers" in (part.get("spec") or {}):
            yield part
        else:
            for each in part.values():
                yield from _templates(each)
