"""Placeholders in program arguments: `{role} {index} {ps_hosts} {worker_hosts} {chief_host}`."""

import difflib
import re
from collections.abc import Callable, Sequence

from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.errors import JobError

_VALUES: dict[str, Callable[[Task, Cluster], str]] = {
    "role": lambda task, cluster: str(task.role),
    "index": lambda task, cluster: str(task.index),
    "ps_hosts": lambda task, cluster: ",".join(cluster.hosts(Role.PS)),
    "worker_hosts": lambda task, cluster: ",".join(cluster.hosts(Role.WORKER)),
    "chief_host": lambda task, cluster: ",".join(cluster.hosts(Role.CHIEF)),
}

# {word} is a placeholder, {{word}} the text {word}; JSON and a shell's ${word} are left alone.
_WORD = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")


def check_placeholders(arguments: Sequence[str]) -> None:
    for argument in arguments:
        for match in _WORD.finditer(argument):
            name = match[2]
            if name is None or name in _VALUES:
                continue
            close = difflib.get_close_matches(name, _VALUES, n=1)
            meant = f"did you mean {{{close[0]}}}? " if close else ""
            known = ", ".join(f"{{{known}}}" for known in _VALUES)
            raise JobError(
                f"{argument!r} has the unknown placeholder {{{name}}}: {meant}"
                f"There are {known}; write {{{{{name}}}}} for the text {{{name}}} itself"
            )


def fill(argument: str, task: Task, cluster: Cluster) -> str:
    return fill_with(argument, lambda name: _VALUES[name](task, cluster))


def fill_with(
    argument: str, value: Callable[[str], str], text: Callable[[str], str] = lambda text: text
) -> str:
    """Return the argument with `value(name)` for each placeholder and `text(part)` for the rest."""
    parts = []
    end = 0
    for match in _WORD.finditer(argument):
        parts.append(text(argument[end : match.start()]) if match.start() > end else "")
        parts.append(text(f"{{{match[1]}}}") if match[1] else value(match[2]))
        end = match.end()
    parts.append(text(argument[end:]) if end < len(argument) or not argument else "")
    return "".join(parts)
