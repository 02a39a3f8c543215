"""Stands before the `ssh` of one task and turns SIGTERM into the end of its standard input.

To end `ssh` itself would leave the task on the other host without a word. The other side takes the
end of its input as the wish to end: the task gets SIGTERM and time to save, and `ssh` returns when
it is gone. A relay that is killed closes the input, too. Only the standard library is used.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType


def relay(command: list[str]) -> int:
    """Run ssh; return the task's exit code, or 128 + n if signal n has ended the task or ssh."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
    assert process.stdin is not None
    pipe = process.stdin

    def end(number: int, frame: FrameType | None) -> None:
        pipe.close()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(relay(sys.argv[1:]))
