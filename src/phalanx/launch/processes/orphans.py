"""Ends tasks of earlier runs on this machine whose supervisor and guardian were both killed.

Each task has the name of its supervisor in its environment, which its children inherit.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from phalanx.cluster.machine_identity import identify_machine
from phalanx.launch.processes.guardian import (
    RUN_ID_VARIABLE,
    end_run_processes,
    list_processes,
)

SUPERVISOR_VARIABLE = "PHALANX_SUPERVISOR"
_GRACE_SECONDS = 5.0


def name_supervisor() -> str:
    """Return a name for this process that no other one has; empty where there is no /proc."""
    machine, started = identify_machine(), _read_start_time(os.getpid())
    return f"{machine} {os.getpid()} {started}" if machine and started else ""


def end_orphans() -> int:
    """End the tasks whose supervisor is dead, and return of how many runs they were."""
    machine, runs = identify_machine(), set()
    for pid, _, state in list_processes() if machine else ():
        variables = _read_variables(pid) if state != "Z" else {}
        match variables.get(SUPERVISOR_VARIABLE, "").rsplit(" ", 2):
            case [here, supervisor, started] if here == machine and supervisor.isdecimal():
                is_alive = _read_start_time(int(supervisor)) == started
                if not is_alive and (run_id := variables.get(RUN_ID_VARIABLE)):
                    runs.add(run_id)
    for run_id in runs:
        end_run_processes(run_id, _GRACE_SECONDS)
    return len(runs)


def _read_start_time(pid: int) -> str:
    """Return when a process was started, in ticks since the start of the machine."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie is dead already.
    return "" if fields[0] == "Z" else fields[19]


def _read_variables(pid: int) -> Mapping[str, str]:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}
