"""Authorization by Roles, and the check that nobody grants more than he has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]
Objects = dict[tuple[str, str], Manifest]


def is_allowed(
    objects: Objects, user: str, verb: str, group: str, resource: str, name: str = ""
) -> bool:
    """Whether the Roles that are bound to a user or a service account allow a request."""
    return any(_allows(rule, verb, group, resource, name) for rule in _rules(objects, user))


def escalation(objects: Objects, user: str, manifest: Manifest) -> str:
    """Return why a user may not create this Role or RoleBinding, or an empty text."""
    if manifest["kind"] == "Role":
        rules = manifest["rules"]
    elif manifest["kind"] == "RoleBinding":
        role = manifest["roleRef"]["name"]
        if ("Role", role) not in objects:
            return f'roles.rbac.authorization.k8s.io "{role}" not found'
        rules = objects["Role", role]["rules"]
    else:
        return ""
    held = list(_rules(objects, user))
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or [""]:
                        if not any(_allows(each, verb, group, resource, name) for each in held):
                            return (
                                f'user "{user}" is attempting to grant RBAC permissions not '
                                f"currently held: {verb} {resource} {name}"
                            )
    return ""


def _rules(objects: Objects, user: str) -> Iterator[Manifest]:
    for (kind, _), binding in objects.items():
        if kind == "RoleBinding" and user in [each["name"] for each in binding["subjects"]]:
            yield from objects["Role", binding["roleRef"]["name"]]["rules"]


def _allows(rule: Manifest, verb: str, group: str, resource: str, name: str) -> bool:
    names = rule.get("resourceNames")
    return (
        verb in rule["verbs"]
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        and (not names or name in names)
    )
