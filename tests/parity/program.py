"""Trains cases in the cluster of this process, one after the other.

    python -m tests.parity.program DIRECTORY MODE NAME...

The chief writes what comes out of each case, or its error, into the directory. With LARGE_BYTES in
the environment, weights from this size on are split over the parameter servers.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

import phalanx


def main() -> None:
    directory, mode_name, *names = sys.argv[1:]
    import tensorflow as tf
    from tests.parity.all_cases import CASES
    from tests.parity.table import Mode
    from tests.parity.training import train_with_phalanx

    from phalanx.train.variables import store

    store.LARGE_BYTES = int(os.environ.get("LARGE_BYTES", store.LARGE_BYTES))
    mode = Mode(mode_name)
    config = phalanx.RunConfig(wait_seconds=120, seed=0)
    if mode is Mode.TWO_DEVICES:
        [cpu] = tf.config.list_physical_devices("CPU")
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, halves)
        config = config.replace(devices=("CPU:0", "CPU:1"))
    if mode is Mode.SYNC_PS:
        config = config.replace(mode=phalanx.Mode.SYNC)
    if mode is Mode.ASYNC_PS:
        config = config.replace(chief_trains=False)
    is_chief = phalanx.detect().task.role is phalanx.Role.CHIEF
    for case in CASES:
        if names and case.name not in names:
            continue
        try:
            result: object = train_with_phalanx(case, config)
        except Exception:
            result = traceback.format_exc()
        if is_chief:
            path = Path(directory, f"{CASES.index(case)}.pickle")
            path.write_bytes(pickle.dumps(result))
            print("done", case.name, flush=True)


if __name__ == "__main__":
    main()
