"""Stands in for training: the leader counts, and the others wait.

The slot that the file `die` names is killed once, when the count is 5.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from phalanx.cluster.progress import PRINTED, PROGRESS_VARIABLE, RunProgress

goal, shares = int(sys.argv[1]), int(sys.argv[2])
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
names = [f"{role}-{i}" for role in ("chief", "worker") for i in range(len(cluster.get(role, [])))]
me = f"{task['type']}-{task['index']}"
slot = os.environ.get("PHALANX_TASK", me)
print("I am", me, "of", len(names), flush=True)
stop: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
saved, done, die, hold = map(Path, ("saved", "done", "die", "hold"))
step, had_to_die = int(saved.read_text()) if saved.exists() else 0, die.exists()
while not done.exists() and not stop:
    time.sleep(0.05)
    if (step >= 5 or saved.exists()) and die.exists() and die.read_text() == slot:
        die.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if had_to_die and not die.exists():
        sys.exit("phalanx: a peer stopped responding")
    if me == names[0]:
        step += 1
        if step >= 5:
            Path("new").write_text(str(step))
            Path("new").replace(saved)
        progress, file = RunProgress(me, step, shares=shares), os.environ[PROGRESS_VARIABLE]
        progress.print() if file == PRINTED else progress.write(Path(file))
        if step >= goal and not hold.exists():
            done.touch()
sys.exit(0 if done.exists() else 75)
