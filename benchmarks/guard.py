"""The cost of `phalanx guard`: CPU time of training on parameter servers, with it and without.

The program is that of ps_steps.py, whose 4,000 steps are mostly round trips between tasks. Guarded
and unguarded clusters take turns for several rounds. CPU time, because other processes disturb it
less.
"""

import os
import resource
import statistics
from pathlib import Path

from clusters import run_cluster

from phalanx.guard.plan import LOOPBACK, plan_guard

ROUNDS = 5
SHAPE = {"chief": 1, "worker": 2, "ps": 1}
PROGRAM = Path(__file__).with_name("ps_steps.py")


def measure(variables: dict[str, str]) -> float:
    """Return the CPU time of a cluster whose tasks have these variables, in seconds."""
    before = dict(os.environ)
    os.environ.update(variables)
    start = _cpu_seconds()
    try:
        run_cluster(PROGRAM, SHAPE, "phalanx", seconds=600)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return _cpu_seconds() - start


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    guarded = dict(plan_guard(LOOPBACK, (), os.environ).variables)
    if not guarded:
        raise SystemExit("the guard cannot work here: see `phalanx guard -- true`")
    ratios = []
    for number in range(ROUNDS):
        on = 0.0
        if number % 2:
            on = measure(guarded)
        off = measure({"PHALANX_GUARD": "off"})
        if not number % 2:
            on = measure(guarded)
        ratios.append(on / off)
        print(f"round {number + 1}: guarded {on:.1f} s, unguarded {off:.1f} s", flush=True)
    print(f"RESULT guard_cpu_time {statistics.median(ratios):.3f} x goal <= 1.02")


if __name__ == "__main__":
    main()
