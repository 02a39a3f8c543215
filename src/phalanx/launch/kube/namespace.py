"""The namespace that kubectl would use: that of the kubeconfig's context."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DEFAULT = "default"


def find_namespace(context: str | None, environ: Mapping[str, str]) -> str:
    """Return the namespace of a context, or of the current one; `default` if it has none.

    Files that do not exist or cannot be read are left to the Kubernetes client to report.
    """
    home = environ.get("HOME", str(Path.home()))
    paths = environ.get("KUBECONFIG") or f"{home}/.kube/config"
    contents = [_read(Path(path)) for path in paths.split(os.pathsep) if path]
    # As in kubectl, the first file that sets a value wins.
    current = context or next(filter(None, (each.get("current-context") for each in contents)), "")
    for content in contents:
        for entry in content.get("contexts") or []:
            if isinstance(entry, dict) and entry.get("name") == current:
                return str((entry.get("context") or {}).get("namespace") or DEFAULT)
    return DEFAULT


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
