"""Short words for the JSON schemas of other projects."""

from __future__ import annotations

from typing import Any


def table(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


def several(item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, **more}


def one_of(*words: str) -> dict[str, Any]:
    return {"enum": list(words)}
