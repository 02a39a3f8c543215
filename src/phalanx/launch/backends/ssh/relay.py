"""Stands before the `ssh` of one task and turns SIGTERM into the end of its standard input.

To end `ssh` itself would leave the task on the other host without a word. The other side takes the
end of its input as the wish to end: the task gets SIGTERM and time to save, and `ssh` returns when
it is gone. A relay that is killed closes the input, too. Only the standard library is used.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType


def relay(command: list[str]) -> int:
    """Run ssh; its exit code is the task's, or minus the signal that ended the task."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
    assert process.stdin is not None
    pipe = process.stdin

    def end(number: int, frame: FrameType | None) -> None:
        pipe.close()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    code = process.wait()
    # A shell gives 128 + n for a task that signal n has ended; 255 is an error of ssh itself.
    return 128 - code if 128 < code < 160 else code


if __name__ == "__main__":
    ended = relay(sys.argv[1:])
    if ended < 0:
        if -ended != signal.SIGKILL:
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
