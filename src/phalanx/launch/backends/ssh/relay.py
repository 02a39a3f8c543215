"""Runs the `ssh` of one task, and closes its standard input on SIGTERM.

If `ssh` itself were ended, the task would keep running on the remote host. When the input of the
remote command ends, the task gets SIGTERM and time to save, and `ssh` returns when it has ended.
The input also ends if the relay is killed. The relay uses the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType


def relay(command: list[str]) -> int:
    """Run ssh and return the exit code of the task, or minus the signal that ended it."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
    assert process.stdin is not None
    pipe = process.stdin

    def end(number: int, frame: FrameType | None) -> None:
        pipe.close()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    code = process.wait()
    # A shell returns 128 + n if signal n ended the task; 255 is an error of ssh itself.
    return 128 - code if 128 < code < 160 else code


if __name__ == "__main__":
    ended = relay(sys.argv[1:])
    if ended < 0:
        if -ended != signal.SIGKILL:
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
