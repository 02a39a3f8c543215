"""A shell command that ends a task with all its children when its standard input is closed.

The process that holds the other end of the input closes it at the latest when it dies. If it sends
the line `kill` before, the task gets no time to end.
"""

from __future__ import annotations

# $1 is the grace period in seconds, $2 the directory, the rest is the command: at the end of the
# input it gets SIGTERM and, after the grace period, SIGKILL.
_SCRIPT = """\
grace=$1; cd "$2" || exit 126; shift 2
exec 3<&0
setsid "$@" </dev/null 3<&- & task=$!
setsid sh -c 'while read -r line; do [ "$line" != kill ] || set -- $1 0; done
kill -TERM -$1; sleep $2; kill -KILL -$1' - $task "$grace" <&3 >/dev/null 2>&1 &
watch=$!
exec 3<&-
{ wait $task; code=$?; } 2>/dev/null
kill -TERM -$task 2>/dev/null && sleep 1 && kill -KILL -$task 2>/dev/null
kill -KILL -$watch 2>/dev/null
exit $code"""


def guard_stdin(directory: str, grace: float) -> list[str]:
    """Return the prefix of a guarded command, which exits with 128 + n if signal n ended it."""
    return ["sh", "-c", _SCRIPT, "phalanx", f"{grace:g}", directory]
