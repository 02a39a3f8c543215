"""Find every problem of a TF_CONFIG at once, each with its fix."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from phalanx.cluster.spec import Role, Task, split_address

ROLE_NAMES = ("chief", "master", "worker", "ps", "evaluator")
ENVIRONMENTS = ("local", "cloud")

# Some of these keys are set by TensorFlow, Cloud ML or Kubeflow, and not used by Phalanx.
_TOP_KEYS = ("cluster", "task", "model_dir", "environment", "job", "rpc_layer", "session_master")
_TASK_KEYS = ("type", "index", "trial", "cloud")

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")


@dataclass(frozen=True)
class Problem:
    """One problem and its fix. Phalanx accepts a tolerated one, but TensorFlow may not."""

    where: str
    what: str
    fix: str
    tolerated: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.fix}"


def lint(text: str) -> list[Problem]:
    """Return every problem of a TF_CONFIG.

    >>> text = '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}'
    >>> print(*lint(text))
    cluster.worker[0]: 'a' has no port. Write it as 'a:2222'.
    """
    duplicates: list[str] = []

    def keep_first(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
        seen: dict[str, object] = {}
        for key, value in pairs:
            if key in seen:
                duplicates.append(key)
            seen.setdefault(key, value)
        return seen

    try:
        config = json.loads(text, object_pairs_hook=keep_first)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        fix = "Make it with `phalanx tf-config make`, and quote it with '…' in the shell."
        return [Problem("TF_CONFIG", f"not JSON ({reason})", fix)]
    if not isinstance(config, dict):
        return [_not_an_object("TF_CONFIG", config, '{"cluster": {…}, "task": {…}}')]
    problems = [
        Problem(f"key {_shown(key)}", "given twice in one object", "Keep one of the two.")
        for key in duplicates
    ]
    problems += _unknown_keys("TF_CONFIG", config, _TOP_KEYS)
    tasks: set[Task] = set()
    problems += _lint_cluster(config.get("cluster", {}), tasks)
    problems += _lint_task(config, tasks)
    problems += _lint_settings(config)
    return problems


def read_cluster(
    cluster: Mapping[str, Mapping[str, object] | Sequence[object]],
) -> Iterator[tuple[str, Task, object]]:
    """Yield the location, the task and the address of each entry of a cluster."""
    for name, members in cluster.items():
        role = Role.parse(name)
        if isinstance(members, Mapping):
            for key, address in members.items():
                yield f'cluster.{name}["{key}"]', Task(role, int(key)), address
        else:
            for index, address in enumerate(members):
                yield f"cluster.{name}[{index}]", Task(role, index), address


def _lint_cluster(cluster: object, tasks: set[Task]) -> Iterator[Problem]:
    """Find the problems of the cluster, and add its tasks to `tasks`."""
    if not isinstance(cluster, dict):
        yield _not_an_object("cluster", cluster, '{"worker": ["host:port"]}')
        return
    readable = {}
    for name, members in cluster.items():
        if name not in ROLE_NAMES:
            yield Problem(f"cluster.{_bare(name)}", "no such role", _role_fix(name))
        elif problem := _find_members_problem(name, members):
            yield problem
        else:
            readable[name] = members

    used: dict[tuple[str, int], str] = {}
    chiefs: list[str] = []
    for where, task, address in read_cluster(readable):
        # A task with a wrong address still exists: one mistake is reported once.
        tasks.add(task)
        if task.role is Role.CHIEF:
            chiefs.append(where)
        problem = find_address_problem(where, address)
        if problem:
            yield problem
        else:
            host, port = split_address(str(address))
            same = ("127.0.0.1" if host.lower() == "localhost" else host.lower(), port)
            if same in used:
                yield Problem(
                    where,
                    f"{address} is the address of {used[same]} too",
                    "Give every task an address of its own (one host may have several ports).",
                )
            used.setdefault(same, where)
    if len(chiefs) > 1:
        yield Problem(
            "cluster",
            f"{len(chiefs)} chiefs ({', '.join(chiefs)}); a master is a chief",
            "Keep one and make the others workers.",
        )
    elif chiefs and Task(Role.CHIEF) not in tasks:
        yield Problem(chiefs[0], "the only chief has index 0", 'Write {"chief": ["host:port"]}.')
    roles = {task.role for task in tasks}
    if Role.PS in roles and Role.WORKER not in roles:
        yield Problem(
            "cluster",
            "ps without worker: no task trains with the parameter servers",
            'Add a worker, or leave "ps" out.',
            tolerated=bool(chiefs),
        )
    if Role.EVALUATOR in roles:
        yield Problem(
            "cluster.evaluator",
            "an evaluator is inside the cluster, and TensorFlow waits for it forever",
            'Take "evaluator" out of "cluster"; the evaluator\'s own "task" is enough.',
            tolerated=True,
        )


def _find_members_problem(name: str, members: object) -> Problem | None:
    where = f"cluster.{name}"
    if isinstance(members, list):
        return None
    if isinstance(members, dict):
        bad = [key for key in members if not _INDEX.fullmatch(key)]
        if not bad:
            return None
        fix = 'Number sparse entries from 0: {"1": "host:port"}.'
        return Problem(where, f"{_shown(bad[0])} is not an index", fix)
    fix = 'Write ["host:port", …].'
    if isinstance(members, str):
        fix = f"Write {json.dumps([each.strip() for each in members.split(',')])}."
    return Problem(where, f"{_kind(members)}, not a list of addresses", fix)


def find_address_problem(where: str, address: object) -> Problem | None:
    """Return what is wrong with the address at `where`, or None."""
    if not isinstance(address, str):
        return Problem(where, f"{_kind(address)}, not an address", 'Write "host:port".')
    shown = _shown(address)
    if re.search(r"\s", address):
        whole = re.sub(r"\s", "", address)
        return Problem(where, f"{shown} has a stray space", f"Write it as {_shown(whole)}.")
    if "://" in address:
        bare = address.partition("://")[2].partition("/")[0]
        return Problem(where, f"{shown} is a URL", f"Write it as {_shown(bare)}.")
    if address.count(":") > 1 and not address.startswith("["):
        return Problem(where, f"{shown} has more than one colon", "Write IPv6 as '[address]:port'.")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return Problem(where, f"{shown} has no port", f"Write it as {_shown(address + ':2222')}.")
    if not _INDEX.fullmatch(port) or not 1 <= int(port) <= 65535:
        return Problem(where, f"{shown} has the port {_shown(port)}", "Use a port from 1 to 65535.")
    if not _HOST.fullmatch(host):
        what = f"{shown} has no host" if not host else f"{_shown(host)} is not a host name"
        return Problem(where, what, "Write a host name or an IP address before the port.")
    return None


def _lint_task(config: Mapping[str, object], tasks: set[Task]) -> Iterator[Problem]:
    if "task" not in config:
        yield Problem(
            "TF_CONFIG",
            "no task: nothing says which task of the cluster this process is",
            'Add "task": {"type": "worker", "index": 0}.',
            tolerated=not config.get("cluster"),
        )
        return
    task = config["task"]
    if not isinstance(task, dict):
        yield _not_an_object("task", task, '{"type": "worker", "index": 0}')
        return
    yield from _unknown_keys("task", task, _TASK_KEYS)
    if not _is_count(task.get("trial", 0)):
        what = f"{_shown(task['trial'])} is not the number of a trial"
        yield Problem("task.trial", what, "Number trials from 0.")
    role = index = None
    name = task.get("type")
    if name is None:
        yield Problem("task", "no type", 'Add "type": "worker" (or chief, ps, evaluator).')
    elif name not in ROLE_NAMES:
        yield Problem("task.type", f"no such role as {_shown(name)}", _role_fix(name))
    else:
        role = Role.parse(name)
    if "index" not in task:
        yield Problem("task", "no index", 'Add "index": 0.')
    elif not _is_count(task["index"]):
        what = f"{_shown(task['index'])} is not an index"
        yield Problem("task.index", what, "Number the tasks of a role from 0.")
    else:
        index = int(task["index"])
        if isinstance(task["index"], str):
            what = f"{_shown(task['index'])} is a string"
            yield Problem("task.index", what, f"Write {index} without quotes.", tolerated=True)
    if role is not None and index is not None:
        yield from _lint_membership(Task(role, index), tasks)


def _lint_membership(task: Task, tasks: set[Task]) -> Iterator[Problem]:
    """Check that the cluster has the task. An evaluator and a single process need no entry."""
    indices = sorted(each.index for each in tasks if each.role is task.role)
    if task in tasks or (not indices and task.role is Role.EVALUATOR):
        return
    if not tasks and task.index == 0 and task.role is not Role.PS:
        return
    if not indices:
        what = f"the cluster has no {task.role}"
        fix = f'Add "{task.role}" to "cluster", or correct "type".'
    else:
        known = f"index {indices[0]}" if len(indices) == 1 else f"indices {_ranges(indices)}"
        what = f"{task.index} is out of range: the cluster has {task.role} {known}"
        fix = f'Correct "index", or add the address of {task}.'
    yield Problem("task.index" if indices else "task.type", what, fix)


def _lint_settings(config: Mapping[str, object]) -> Iterator[Problem]:
    model_dir = config.get("model_dir", "unset")
    if not isinstance(model_dir, str) or not model_dir:
        what = f"{_shown(model_dir)} is not a path"
        yield Problem("model_dir", what, "Write a path or leave it out.")
    environment = config.get("environment", "local")
    if environment not in ENVIRONMENTS:
        what = f"{_shown(environment)} is not known"
        yield Problem("environment", what, 'Write "local" or "cloud".')


def _unknown_keys(where: str, given: Iterable[str], known: Sequence[str]) -> Iterator[Problem]:
    """Report keys that look misspelled; other unknown keys may come from other tools."""
    for key in given:
        if key not in known:
            meant = _closest(key, known)
            if meant:
                yield Problem(where, f"unknown key {_shown(key)}", f'Did you mean "{meant}"?')


def _role_fix(name: object) -> str:
    meant = _closest(name, ROLE_NAMES) if isinstance(name, str) else None
    if meant:
        return f'Did you mean "{meant}"?'
    return "Use chief (or master), worker, ps or evaluator."


def _not_an_object(where: str, value: object, example: str) -> Problem:
    return Problem(where, f"{_kind(value)}, not an object", f"Write {example}.")


def _closest(name: str, known: Sequence[str]) -> str | None:
    folded = name.lower().replace("-", "_")
    return next(iter(difflib.get_close_matches(folded, known, n=1, cutoff=0.7)), None)


def _is_count(value: object) -> bool:
    if isinstance(value, str):
        return bool(_INDEX.fullmatch(value))
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _ranges(numbers: list[int]) -> str:
    """Write `0 to 3`, or `0, 2, 5` if some are missing."""
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def _bare(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)


def _shown(value: object) -> str:
    """Return the value as the user wrote it, cut to a length that fits a sentence."""
    if isinstance(value, dict | list):
        return _kind(value)
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"
