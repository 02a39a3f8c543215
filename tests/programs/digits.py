"""The example examples/plain_tensorflow, whose chief waits at step 500 while a file `hold` exists.

    python digits.py [--train-steps N]

The example is beside this file as plain.py.
"""

import importlib
import time
from pathlib import Path
from typing import Any

import phalanx

plain: Any = importlib.import_module("plain")


def print_and_wait(line: str) -> None:
    print(line, flush=True)
    while line.startswith("step 500:") and Path("hold").exists():
        time.sleep(0.1)


plain.print = print_and_wait
config = phalanx.detect()
if config.is_chief():
    plain.train()
else:
    plain.serve(config)
