"""Decides how a task is guarded: the variables of its process, and what the user must know."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from phalanx.errors import JobError
from phalanx.guard.library import (
    ANY,
    SWITCH,
    find_library,
    find_obstacle,
    guard_variables,
    is_off,
    is_required,
)
from phalanx.guard.own_address import find_own_address

LOOPBACK = "127.0.0.1"
# Linux takes no variable of 128 KiB.
_MAX_BYTES = 120_000


@dataclass(frozen=True)
class Guard:
    """The variables that guard a process, and a warning if they cannot or only in part."""

    variables: Mapping[str, str] = field(default_factory=dict)
    warning: str = ""


def plan_guard(
    host: str | None, peers: Iterable[str], environ: Mapping[str, str], program: str | None = None
) -> Guard:
    """Plan the guard of a task on this machine; a JobError if it is required and cannot work.

    Args:
        host: The host of the task in its cluster; None for a task that nobody connects to.
        peers: The hosts that may connect.
        environ: The environment of the task, with the user's settings.
        program: The program to start, if it is not Python.
    """
    if is_off(environ):
        return Guard()
    library, obstacle = find_library(), find_obstacle(program)
    if library is None or obstacle:
        what = f"phalanx guard cannot close the ports of this job to the network: {obstacle}"
        if is_required(environ):
            raise JobError(f"{what}; {SWITCH} is required")
        return Guard(warning=f"{what} (see SECURITY.md)")
    hosts, warning = list(dict.fromkeys(peers)), ""
    own = find_own_address(host or LOOPBACK, hosts if host else ())
    if own.address == ANY:
        what = "this task listens on all interfaces, though only its job can connect"
        warning = f"{what}: {own.reason} (see SECURITY.md)"
    if len(",".join(hosts)) > _MAX_BYTES or ANY in hosts:
        what = "any host can connect to this task at its address"
        reason = "the hosts are *" if ANY in hosts else "the job has too many hosts to list"
        if is_required(environ):
            raise JobError(f"{what}: {reason}; {SWITCH} is required")
        warning, hosts = f"{what}: {reason} (see SECURITY.md)", [ANY]
    return Guard(guard_variables(library, own.address, hosts, environ), warning)
