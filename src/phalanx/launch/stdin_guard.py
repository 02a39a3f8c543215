"""A command that ends when its standard input does, with all that it has started.

Whoever holds the other end of the input, on this host or on another, ends the command by closing
it, and cannot die without doing so.
"""

from __future__ import annotations

# $1 is the grace in seconds, $2 the directory, the rest is the command: at the end of the input it
# gets SIGTERM and, after the grace, SIGKILL.
_SCRIPT = """\
grace=$1; cd "$2" || exit 126; shift 2
exec 3<&0
setsid "$@" </dev/null 3<&- & task=$!
setsid sh -c 'cat; kill -TERM -$1; sleep $2; kill -KILL -$1' - $task "$grace" <&3 >/dev/null 2>&1 &
watch=$!
exec 3<&-
{ wait $task; code=$?; } 2>/dev/null
kill -TERM -$task 2>/dev/null && sleep 1 && kill -KILL -$task 2>/dev/null
kill -KILL -$watch 2>/dev/null
exit $code"""


def tether(directory: str, grace: float) -> list[str]:
    """What to put before the command. Its exit code is 128 + n if signal n has ended it."""
    return ["sh", "-c", _SCRIPT, "phalanx", f"{grace:g}", directory]
