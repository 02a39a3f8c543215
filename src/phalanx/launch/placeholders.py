"""`{role} {index} {ps_hosts} {worker_hosts} {chief_host}` in a program's arguments."""

from __future__ import annotations

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

# A word in braces is a placeholder, in double braces itself; JSON and a shell's ${word} are text.
_WORD = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")


def check_placeholders(arguments: Sequence[str]) -> None:
    """Raise a JobError for a placeholder that does not exist."""
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
    """The argument as this task gets it.

    >>> fill("--job_name={role}", Task(Role.PS), Cluster())
    '--job_name=ps'
    >>> fill('{"rate": 0.1} {{role}}', Task(Role.PS), Cluster())
    '{"rate": 0.1} {role}'
    """
    return fill_with(argument, lambda name: _VALUES[name](task, cluster))


def fill_with(
    argument: str, value: Callable[[str], str], text: Callable[[str], str] = lambda text: text
) -> str:
    """The argument with `value(name)` for each placeholder, and `text` applied to all else.

    >>> import shlex
    >>> print(fill_with("my {index}", lambda name: f'"${name}"', shlex.quote))
    'my '"$index"
    """
    parts = []
    place = 0
    for match in _WORD.finditer(argument):
        parts.append(text(argument[place : match.start()]) if match.start() > place else "")
        parts.append(text(f"{{{match[1]}}}") if match[1] else value(match[2]))
        place = match.end()
    parts.append(text(argument[place:]) if place < len(argument) or not argument else "")
    return "".join(parts)
