"""API objects as YAML that people can read and `kubectl apply` takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import ConfigurationError

Manifest = dict[str, Any]

# Booleans in YAML 1.1, which some readers still follow.
_BOOLEAN = re.compile(r"(?i)y|n|yes|no|on|off|true|false")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks; words that might be taken for booleans in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Whatever occurs twice is written twice."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if _BOOLEAN.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(objects: Iterable[Manifest]) -> str:
    """The objects, one document each.

    >>> print(dump([{"env": "on"}]))
    env: "on"
    """
    documents = (yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=100) for each in objects)
    return "---\n".join(documents).rstrip("\n")


def load(path: Path) -> list[Manifest]:
    """The documents of a file."""
    try:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    for each in documents:
        if not isinstance(each, dict):
            raise ConfigurationError(f"{path} holds {each!r}, which is not an object")
    return documents
