"""Parsers of option values: sizes, durations, NAME=VALUE pairs, and amounts for each role.

Each parser takes the text and raises a ValueError that says what to write instead.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import TypeVar

from phalanx.cluster.spec import Role

_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_SECONDS = 1e8

Amount = TypeVar("Amount", float, int)


def parse_size(text: str) -> int:
    """Return a number of bytes.

    >>> parse_size("1.5G")
    1610612736
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise ValueError(f"{text!r} is not a size: write 512M or 16G")
    return int(float(match[1]) * _BYTES[match[2].upper()])


def parse_duration(text: str, least: float = 0, most: float = LONGEST_SECONDS) -> float:
    """Return a number of seconds.

    >>> parse_duration("1h30m"), parse_duration("90")
    (5400.0, 90.0)
    """
    try:
        seconds = float(text)
    except ValueError:
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd]?)", text)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(
                f"{text!r} is not a duration: write 90 or 90s for seconds, 30m, 12h or 1d12h"
            ) from None
    # NaN compares false with everything, so it fails this check, too.
    if not least <= seconds <= most:
        raise ValueError(f"{text} is not from {least:g} to {most:,.0f} seconds")
    return seconds


def parse_positive_duration(text: str) -> float:
    return parse_duration(text, least=0.001)


def parse_cpus(text: str) -> float:
    cpus = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0
    if not cpus:
        raise ValueError(f"{text!r} is not a number of processors: write 4 or 0.5")
    return cpus


def parse_gpus(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number of GPUs: write 0, 1, 2, …")
    return int(text)


def parse_pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE; errors do not repeat the value, which may be a secret."""
    name, equals, value = text.partition("=")
    if not equals or not is_variable(name):
        raise ValueError(
            f"{name!r} is not NAME=VALUE: a name has letters, digits and underscores, and begins "
            "with no digit"
        )
    if "\0" in value:
        raise ValueError(f"the value of {name} has a null character, which no program can be given")
    return name, value


def is_variable(name: str) -> bool:
    """Whether every shell can export a variable of this name."""
    return re.fullmatch(r"[A-Za-z_]\w{0,252}", name, re.ASCII) is not None


def has_control_characters(text: str) -> bool:
    """Whether a text could end a line, or change the terminal it is printed on."""
    return any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in text)


def is_image(text: str) -> bool:
    """Whether a text can be the name of a container image, and not an option of a command."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w./:@-]{0,511}", text, re.ASCII))


def parse_label(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE; the name of a label may have a prefix, as in kubernetes.io/arch=amd64."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"([A-Za-z0-9.-]+/)?[A-Za-z0-9_][\w.-]*", name):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def parse_per_role(parse: Callable[[str], Amount]) -> Callable[[str], dict[Role, Amount]]:
    """Return a parser of `AMOUNT`, which is for every role, or `ROLE=AMOUNT`, for one."""

    def parse_amounts(text: str) -> dict[Role, Amount]:
        role, equals, amount = text.rpartition("=")
        return {each: parse(amount) for each in ([Role.parse_any(role)] if equals else Role)}

    return parse_amounts
