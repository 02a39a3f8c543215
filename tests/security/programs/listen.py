"""Starts the TensorFlow server of its task, and listens until the file argv[1]/stop exists."""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = tf.distribute.Server(
    config["cluster"], job_name=task["type"], task_index=task["index"], start=True
)
folder = Path(sys.argv[1])
address = config["cluster"][task["type"]][task["index"]]
(folder / f"{task['type']}-{task['index']}").write_text(address)
deadline = time.monotonic() + 300
while not (folder / "stop").exists() and time.monotonic() < deadline:
    time.sleep(0.1)
