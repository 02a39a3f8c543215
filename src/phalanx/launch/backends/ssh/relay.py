"""Runs the `ssh` of one task, and closes its standard input on SIGTERM.

If `ssh` itself were ended, the task would keep running on the remote host. When the input of the
remote command ends, the task gets SIGTERM and time to save, and `ssh` returns when it has ended.
The input also ends if the relay is killed. The relay uses the standard library only.
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
