"""The cost of `phalanx guard`: CPU time of steps between TensorFlow's servers, with it and without.

Two processes, one of them guarded, each with a parameter server and a worker. Every step is a round
trip between the two, over TCP. The processes take turns for many short rounds, so that other work
on the machine disturbs both alike, and three pairs of them are measured, because no two processes
are equally fast. What counts is the CPU time of the process after its start.
"""

import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from phalanx.guard.plan import LOOPBACK, plan_guard

PAIRS = 3
ROUNDS = 30
STEPS = 300


class Contestant:
    """A process that runs a round of steps whenever it is asked to."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.measure()

    def measure(self) -> float:
        """Return the CPU time of a round, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def serve() -> None:
    import tensorflow as tf

    from phalanx.guard.library import is_active, is_off
    from phalanx.launch.backends.local.ports import hold_ports

    assert is_active() != is_off(os.environ)
    tf.compat.v1.disable_eager_execution()
    with hold_ports(2) as (ps, worker):
        cluster = {"ps": [f"127.0.0.1:{ps}"], "worker": [f"127.0.0.1:{worker}"]}
        servers = [tf.distribute.Server(cluster, role, 0) for role in cluster]
    with tf.device("/job:ps/task:0"):
        weights = tf.compat.v1.get_variable("weights", [1000], use_resource=True)
    with tf.device("/job:worker/task:0"):
        step = weights.assign_add(tf.sin(weights) * 0.1, read_value=False)
    session: Any = tf.compat.v1.Session(servers[1].target)
    session.run(tf.compat.v1.global_variables_initializer())
    for _ in sys.stdin:
        started = time.process_time()
        for _ in range(STEPS):
            session.run(step)
        print(time.process_time() - started, flush=True)


def main() -> None:
    guarded = dict(plan_guard(LOOPBACK, (), os.environ).variables)
    if not guarded:
        raise SystemExit("the guard cannot work here: see `phalanx guard -- true`")
    ratios = []
    for number in range(PAIRS):
        on, off = Contestant(guarded), Contestant({"PHALANX_GUARD": "off"})
        try:
            rounds = [
                (on.measure(), off.measure()) if turn % 2 else (off.measure(), on.measure())[::-1]
                for turn in range(ROUNDS)
            ]
        finally:
            on.stop()
            off.stop()
        ratios.append(statistics.median(first / second for first, second in rounds))
        total = [sum(each) for each in zip(*rounds, strict=True)]
        print(
            f"pair {number + 1}: guarded {total[0]:.1f} s, unguarded {total[1]:.1f} s of CPU time "
            f"in {ROUNDS * STEPS} steps, median {ratios[-1]:.3f} x",
            flush=True,
        )
    print(f"RESULT guard_cpu_time {statistics.median(ratios):.3f} x goal <= 1.02")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
