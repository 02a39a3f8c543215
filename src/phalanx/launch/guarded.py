"""Guards the tasks of a job: here by their variables, on other hosts with `phalanx guard`."""

import sys
from collections.abc import Iterable, Mapping

from phalanx.guard.library import is_off
from phalanx.guard.plan import LOOPBACK, Guard, plan_guard
from phalanx.launch.job import Job

# $0 is the Python of the task, the rest is its command. Programs that do not use Phalanx may run
# where it is not installed. -P: a directory named phalanx beside the program does not count.
_SCRIPT = """\
if "$0" -P -c "import phalanx.guard" 2>/dev/null; then exec "$0" -P -m phalanx guard -- "$@"; fi
echo "phalanx: warning: without Phalanx in $0, this task has open ports (see SECURITY.md)" >&2
[ "$PHALANX_GUARD" != required ] || exit 2; exec "$@\""""


def plan_local_guard(job: Job, environ: Mapping[str, str]) -> Guard:
    """Plan the guard of the tasks on this machine, which listen on its loopback address."""
    program = job.program.command(sys.executable)[0]
    return plan_guard(LOOPBACK, (), {**environ, **job.environment}, program)


def guard_prefix(job: Job, python: str) -> tuple[str, ...]:
    """Return what precedes the command of a task that finds its cluster in TF_CONFIG."""
    if is_off(job.environment):
        return ()
    return ("sh", "-c", _SCRIPT, python)


def guard_data_task(job: Job, python: str, host: str, peers: Iterable[str]) -> tuple[str, ...]:
    """Return what precedes the command of a dispatcher or data worker, which has no TF_CONFIG."""
    if is_off(job.environment):
        return ()
    hosts = ",".join(dict.fromkeys(peers))
    return (python, "-m", "phalanx", "guard", f"--host={host}", f"--peers={hosts}", "--")
