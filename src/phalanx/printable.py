"""Text that is safe to print: names in files and messages of others cannot control a terminal."""

import json
import re
import unicodedata

_UNUSUAL = re.compile(r"[^\n\t -~]")
# Control and format characters, and halves of surrogate pairs, which cannot be printed at all.
_CONTROLS = frozenset({"Cc", "Cf", "Cs"})


def make_printable(text: str) -> str:
    """Escape what controls a terminal or reverses text, as JSON does; lines and tabs stay.

    >>> print(make_printable("a\\x1b[31mb\\u202e"))
    a\\u001b[31mb\\u202e
    """
    return _UNUSUAL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if unicodedata.category(character) in _CONTROLS:
        return json.dumps(character)[1:-1]
    return character
