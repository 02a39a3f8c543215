"""The report on a program: each TensorFlow 1 name, whether it works, and its replacement."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from phalanx.compat.tf1.check.replacements import DIFFERENT, MODERN, look_up
from phalanx.compat.tf1.check.sources import Sources
from phalanx.compat.tf1.check.uses import find_uses
from phalanx.compat.tf1.missing import describe_missing
from phalanx.errors import ConfigurationError


class Status(StrEnum):
    """Whether a name works under --tf1."""

    WORKS = "works"
    DIFFERS = "works differently"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """One name that a program uses.

    Attributes:
        name: The name as the program knows it, as in `tf.train.AdamOptimizer`.
        status: Whether it works under --tf1.
        lines: Where it is used.
        note: How it differs, or what replaces it under --tf1.
        modern: What replaces it in a modern program.
    """

    name: str
    status: Status
    lines: tuple[int, ...]
    note: str = ""
    modern: str = ""


def list_programs(path: Path) -> list[Path]:
    """Return a Python file itself, or all Python files below a directory.

    Raises:
        ConfigurationError: There is none.
    """
    below = (file for file in path.rglob("*.py") if _is_own(file.relative_to(path)))
    files = [path] if path.is_file() else sorted(below)
    if not files:
        what = "no Python file below" if path.is_dir() else "no file or directory"
        raise ConfigurationError(f"there is {what} {path}: name a program, or the directory of one")
    return files


def _is_own(file: Path) -> bool:
    """Whether a file is neither in a hidden directory, such as .venv, nor of installed packages."""
    return not any(part == "site-packages" or part.startswith(".") for part in file.parts)


def check_source(source: str, sources: Sources) -> list[Finding]:
    """Return a finding for each TensorFlow 1 name in the source of a program, missing ones first.

    Args:
        source: The source.
        sources: The installed packages.

    Raises:
        ConfigurationError: The source is not text.
    """
    if "\0" in source:
        raise ConfigurationError("the file is not the source of a Python program")
    try:
        uses = find_uses(source)
    except (RecursionError, MemoryError):
        raise ConfigurationError("the program is nested too deeply for Python") from None
    except SyntaxError as error:
        note = "convert the program to Python 3 first"
        problem = f"line {error.lineno} is not Python 3: {error.msg}"
        return [Finding(problem, Status.MISSING, (error.lineno or 1,), note)]
    lines: dict[str, list[int]] = defaultdict(list)
    exists: dict[str, bool] = {}
    for use in uses:
        resolved = sources.resolve(use.name)
        lines[resolved.name].append(use.line)
        exists[resolved.name] = resolved.exists
    findings = [
        _judge(name, exists[name], tuple(dict.fromkeys(found)), sources)
        for name, found in lines.items()
        if not _is_covered(name, lines)
    ]
    order = [Status.MISSING, Status.DIFFERS, Status.WORKS]
    return sorted(findings, key=lambda finding: (order.index(finding.status), finding.name))


def _is_covered(name: str, names: Iterable[str]) -> bool:
    """Whether a module is in the list only because its names are."""
    return any(other.startswith(f"{name}.") for other in names)


def _judge(name: str, exists: bool, lines: tuple[int, ...], sources: Sources) -> Finding:
    short = name.replace("tensorflow.", "tf.", 1) if name.startswith("tensorflow.") else name
    modern = look_up(MODERN, name) or ""
    if not exists:
        note = describe_missing(name).partition(": ")[2]
        return Finding(short, Status.MISSING, lines, note, modern)
    if not modern and name.startswith("tensorflow.contrib."):
        modern = "none in TensorFlow 2"
    elif not modern:
        same = sources.is_in_tensorflow_2(name)
        modern = "the same" if same else short.replace("tf.", "tf.compat.v1.", 1)
    note = look_up(DIFFERENT, name) or ""
    return Finding(short, Status.DIFFERS if note else Status.WORKS, lines, note, modern)


def render(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the lines of a report."""
    for each in findings:
        lines = ", ".join(map(str, each.lines[:5])) + (", ..." if len(each.lines) > 5 else "")
        note = f": {each.note}" if each.note else ""
        modern = f"  -> {each.modern}" if each.modern else ""
        yield f"  {each.status:18}{each.name} (line {lines}){note}{modern}"
