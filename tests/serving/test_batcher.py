"""A served model, without HTTP: requests that arrive together share one call of the model."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.servers.processes import wait_for

tf = pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

from phalanx.serving import rest  # noqa: E402
from phalanx.serving.batcher import Batcher, OverloadedError, ServedModel  # noqa: E402
from phalanx.train.export.signatures import DEFAULT_SIGNATURE, Signature  # noqa: E402


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_waiting(batcher: Batcher, count: int) -> bool:
    return batcher._waiting.qsize() == count


def test_requests_that_wait_for_a_busy_model_become_one_batch() -> None:
    gate = threading.Event()
    sizes: list[int] = []

    def double(arrays: Any) -> Any:
        sizes.append(len(arrays["x"]))
        if len(sizes) == 1:
            gate.wait(60)
        return {"y": arrays["x"] * 2}

    batcher = Batcher(double)
    batcher.start()
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(batcher.predict, {"x": np.array([0.0])}, 1, 60)
        until(lambda: bool(sizes))
        others = [
            pool.submit(batcher.predict, {"x": np.array([n, n + 0.5])}, 2, 60) for n in range(8)
        ]
        until(lambda: has_waiting(batcher, 8))
        gate.set()
        assert [future.result()["y"].tolist() for future in others] == [
            [2.0 * n, 2 * n + 1] for n in range(8)
        ]
        assert first.result()["y"].tolist() == [0.0]
    batcher.stop()
    assert sizes == [1, 16]


def test_a_batch_has_at_most_max_rows_and_one_shape() -> None:
    shapes: list[tuple[int, ...]] = []
    gate = threading.Event()

    def call(arrays: Any) -> Any:
        gate.wait(60)
        shapes.append(arrays["x"].shape)
        return {"y": arrays["x"]}

    batcher = Batcher(call, max_rows=4)
    with ThreadPoolExecutor(8) as pool:
        wanted = [(3, 1), (3, 1), (1, 1), (1, 2)]
        futures = []
        for number, shape in enumerate(wanted, 1):
            futures.append(pool.submit(batcher.predict, {"x": np.zeros(shape)}, shape[0], 60))
            until(partial(has_waiting, batcher, number))
        batcher.start()
        gate.set()
        assert [future.result()["y"].shape for future in futures] == wanted
    batcher.stop()
    assert shapes == [(3, 1), (4, 1), (1, 2)]


def test_a_bad_request_does_not_fail_the_others() -> None:
    def call(arrays: Any) -> Any:
        if (arrays["x"] < 0).any():
            raise ValueError("negative")
        return {"y": arrays["x"]}

    batcher = Batcher(call)
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(batcher.predict, {"x": np.array([n])}, 1, 60) for n in (1.0, -1.0, 2.0)
        ]
        until(lambda: has_waiting(batcher, 3))
        batcher.start()
        assert futures[0].result()["y"].tolist() == [1.0]
        assert futures[2].result()["y"].tolist() == [2.0]
        with pytest.raises(ValueError, match="negative"):
            futures[1].result()
    batcher.stop()


def test_an_output_without_a_row_for_each_input_is_not_split() -> None:
    def call(arrays: Any) -> Any:
        return {"y": arrays["x"], "classes": np.array([7, 8, 9])}

    batcher = Batcher(call)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(batcher.predict, {"x": np.array([n])}, 1, 60) for n in (1.0, 2.0)]
        until(lambda: has_waiting(batcher, 2))
        batcher.start()
        for number, future in enumerate(futures, 1):
            answer = {name: value.tolist() for name, value in future.result().items()}
            assert answer == {"y": [number], "classes": [7, 8, 9]}
    batcher.stop()


def test_too_many_requests_and_a_slow_model_are_errors() -> None:
    batcher = Batcher(lambda arrays: arrays, max_waiting=1)
    with pytest.raises(FutureTimeoutError):
        batcher.predict({"x": np.array([1])}, 1, 0.01)
    with pytest.raises(OverloadedError):
        batcher.predict({"x": np.array([1])}, 1, 0.01)
    batcher.start()
    batcher.stop()


def test_outputs_of_a_fixed_length_are_not_split() -> None:
    gate = threading.Event()

    def call(x: Any) -> Any:
        gate.wait(60)
        return {"classes": tf.constant([7, 8])}

    rows = {"x": tf.TensorSpec([None], tf.float32)}
    signature = Signature(rows, {"classes": tf.TensorSpec([2], tf.int32)}, call)
    model = ServedModel("m", 1, {DEFAULT_SIGNATURE: signature})
    model.start()
    request = rest.parse_request(b'{"inputs": [1.0]}', model.signatures)
    answers = [model.submit(request) for _ in range(3)]
    wait_for(lambda: model.batchers[DEFAULT_SIGNATURE]._waiting.qsize() == 2)
    gate.set()
    outputs = [rest.format_response(request, each.result(60)) for each in answers]
    assert [json.loads(each) for each in outputs] == [{"outputs": [7, 8]}] * 3
    model.stop()
