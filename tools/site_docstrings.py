"""An extension of griffe: shows the examples in docstrings as code."""

import re
from typing import Any

import griffe

# Lines from `>>>` to the next empty line, all with the same indentation.
_SESSION = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent).+)*", re.MULTILINE)


class FencedSessions(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _SESSION.sub(_fence, obj.docstring.value)


def _fence(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0]}\n{indent}```"
