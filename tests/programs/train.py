"""A fake training program without TensorFlow: prints its task, counts steps, saves on SIGTERM.

    python train.py STEPS [ARGS]…

A parameter server never exits. While a file `hold` exists, no task finishes.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

task = json.loads(os.environ["TF_CONFIG"])["task"]
print("I am", task["type"], task["index"], *sys.argv[2:], flush=True)


def save(*_: object) -> None:
    print("saving", flush=True)
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(1)


if task["type"] == "ps":
    time.sleep(600)
signal.signal(signal.SIGTERM, save)
for step in range(int(sys.argv[1])):
    print("step", step, flush=True)
    time.sleep(0.1)
while Path("hold").exists():
    time.sleep(0.1)
