"""Throughput of `phalanx serve` with 8 clients, relative to direct calls of the model.

python benchmarks/serve.py

8 clients request predictions of the same model, one row at a time: as threads that call it directly
in its process, and as separate processes over HTTP. The figure is the requests per second over
HTTP, with batching, relative to the direct calls.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

CLIENTS = 8
SECONDS = 5.0
ROUNDS = 5
WIDTH = 64
LAYERS = 6
UNITS = 1024

# A client process has two connections and uses only the standard library, so that the clients take
# little of the machine.
CLIENT = """
import http.client, json, sys, threading, time
port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
body = json.dumps({"instances": [[0.5] * %d]})
counts = [0] * connections
def request(index):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.request("POST", "/v1/models/model:predict", body)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        counts[index] += 1
    connection.close()
threads = [threading.Thread(target=request, args=(index,)) for index in range(connections)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(counts))
"""


def make_model(folder: str) -> str:
    import keras

    from phalanx import Experiment
    from phalanx.train.export.saved_model import export
    from phalanx.train.model_dir.checkpoint_loader import TrainedModel

    layers: list[Any] = [keras.Input((WIDTH,), name="x")]
    layers += [keras.layers.Dense(UNITS, "relu") for _ in range(LAYERS)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, "softmax")])
    return export(Experiment(), TrainedModel(model, 0, ""), f"{folder}/model")


class Direct:
    """Threads that call the model in this process, one row per call."""

    def __init__(self, path: str) -> None:
        import tensorflow as tf

        from phalanx.train.export.signatures import load_signatures

        self._call = load_signatures(path)["serving_default"].call
        self._row = tf.fill([1, WIDTH], 0.5)

    def measure(self) -> float:
        counts = [0] * CLIENTS
        end = time.monotonic() + SECONDS

        def request(index: int) -> None:
            while time.monotonic() < end:
                self._call(x=self._row)["predictions"].numpy()
                counts[index] += 1

        threads = [threading.Thread(target=request, args=(index,)) for index in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / SECONDS


@contextlib.contextmanager
def serving(folder: str, *options: str) -> Iterator[int]:
    command = [sys.executable, "-m", "phalanx", "serve", f"{folder}/model", "--port", "0"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/v1", process.stdout.readline())
        assert found
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(30)


def measure_http(port: int) -> float:
    arguments = [str(port), "2", str(SECONDS)]
    command = [sys.executable, "-c", CLIENT % WIDTH, *arguments]
    clients = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS // 2)
    ]
    return sum(int(client.communicate(timeout=60)[0]) for client in clients) / SECONDS


def warm_up(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(20):
        body = json.dumps({"instances": [[0.5] * WIDTH] * 4})
        connection.request("POST", "/v1/models/model:predict", body)
        connection.getresponse().read()
    connection.close()


def main() -> None:
    ratios, unbatched_ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        direct = Direct(make_model(folder))
        direct.measure()
        with serving(folder) as batched, serving(folder, "--max-batch", "1") as one_by_one:
            for port in (batched, one_by_one):
                warm_up(port)
            for number in range(ROUNDS):
                bare = direct.measure()
                served, unbatched = measure_http(batched), measure_http(one_by_one)
                ratios.append(served / bare)
                unbatched_ratios.append(unbatched / bare)
                print(
                    f"round {number + 1} of {ROUNDS}: direct {bare:.0f}, served {served:.0f}, "
                    f"without batching {unbatched:.0f} requests/s",
                    file=sys.stderr,
                )
    print(f"without batching: {statistics.median(unbatched_ratios):.2f} of the direct calls")
    print(f"RESULT serve_over_direct {statistics.median(ratios):.2f} x goal >= 0.8")


if __name__ == "__main__":
    main()
