"""API objects as readable YAML for `kubectl apply`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from phalanx.errors import ConfigurationError

Manifest: TypeAlias = dict[str, Any]
"""An API object of Kubernetes or another orchestrator, or a part of one, as plain data."""

# Booleans in YAML 1.1, which some parsers still follow.
_BOOLEAN = re.compile(r"(?i)y|n|yes|no|on|off|true|false")


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as blocks, and quotes words that could be read as booleans."""

    def ignore_aliases(self, data: object) -> bool:
        """Write an object that occurs twice in full, without YAML aliases."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if _BOOLEAN.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(objects: Iterable[Manifest]) -> str:
    documents = (yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=100) for each in objects)
    return "---\n".join(documents).rstrip("\n")


def load(path: Path) -> list[Manifest]:
    try:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    for each in documents:
        if not isinstance(each, dict):
            raise ConfigurationError(f"{path} holds {each!r}, which is not an object")
    return documents
