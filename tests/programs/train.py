"""A stand-in for training that needs no TensorFlow: says who it is, counts, and saves on SIGTERM.

    python train.py STEPS [ARGS]…

A parameter server never returns. While there is a file `hold`, nobody finishes.
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
