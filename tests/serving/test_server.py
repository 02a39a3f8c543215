"""A served model, without HTTP."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.servers.processes import wait_for

tf = pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

from phalanx.serving.server import ServedModel  # noqa: E402
from phalanx.train.export.signatures import DEFAULT_SIGNATURE, Signature  # noqa: E402


def test_outputs_of_a_fixed_length_are_not_split() -> None:
    gate = threading.Event()

    def call(x: Any) -> Any:
        gate.wait(60)
        return {"classes": tf.constant([7, 8])}

    rows = {"x": tf.TensorSpec([None], tf.float32)}
    signature = Signature(rows, {"classes": tf.TensorSpec([2], tf.int32)}, call)
    model = ServedModel("m", 1, {DEFAULT_SIGNATURE: signature})
    model.start()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(model.predict, b'{"inputs": [1.0]}') for _ in range(3)]
        wait_for(lambda: model.batchers[DEFAULT_SIGNATURE]._waiting.qsize() == 2)
        gate.set()
        assert [json.loads(each.result()) for each in answers] == [{"outputs": [7, 8]}] * 3
    model.stop()
