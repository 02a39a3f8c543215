"""`phalanx serve` as a client of TensorFlow Serving sees it."""

import base64
import http.client
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx.train.export.saved_model import export
from phalanx.train.model_dir.checkpoint_loader import TrainedModel


class Client:
    """A client that uses only the standard library."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.metrics_port = 0

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if isinstance(body, str | None) else json.dumps(body)
            connection.request(method, path, data)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def predict(self, body: Any, name: str = "line") -> tuple[int, Any]:
        return self.request("POST", f"/v1/models/{name}:predict", body)


@pytest.fixture(scope="module")
def model() -> Any:
    return Line().model(phalanx.Context())


@pytest.fixture(scope="module")
def process(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Client]]:
    folder = tmp_path_factory.mktemp("models") / "line"
    export(Line(), TrainedModel(model, 0, ""), str(folder), version=3)
    command = [sys.executable, "-m", "phalanx", "serve", str(folder), "--port", "0"]
    command += ["--metrics-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"line version 3 at http://127\.0\.0\.1:(\d+)/", line)
        assert match, line
        client = Client(int(match[1]))
        metrics = re.search(r"metrics at http://127\.0\.0\.1:(\d+)/metrics", line)
        assert metrics, line
        client.metrics_port = int(metrics[1])
        yield process, client
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def client(process: tuple[Any, Client]) -> Client:
    return process[1]


def expected(model: Any, rows: Any) -> Any:
    return model(np.array(rows, "float32")).numpy()


ROWS = [[1, 2, 3, 4], [0.5, 0, 0, -1]]


@pytest.mark.parametrize(
    "body",
    [
        {"instances": ROWS},
        {"instances": [{"x": row} for row in ROWS]},
        {"signature_name": "serving_default", "instances": ROWS},
        {"inputs": ROWS},
        {"inputs": {"x": ROWS}},
    ],
)
def test_every_form_of_a_predict_request(client: Client, model: Any, body: Any) -> None:
    status, answer = client.predict(body)
    assert status == 200, answer
    key = "predictions" if "instances" in body else "outputs"
    np.testing.assert_allclose(answer[key], expected(model, ROWS), rtol=1e-4)


def test_serialized_examples_are_sent_as_base64(client: Client, model: Any) -> None:
    value = tf.train.Feature(float_list=tf.train.FloatList(value=ROWS[0]))
    example = tf.train.Example(features=tf.train.Features(feature={"x": value}))
    encoded = {"b64": base64.b64encode(example.SerializeToString()).decode()}
    body = {
        "signature_name": "serving_examples",
        "instances": [{"examples": encoded}, {"examples": encoded}],
    }
    status, answer = client.predict(body)
    assert status == 200, answer
    np.testing.assert_allclose(answer["predictions"], expected(model, ROWS[:1] * 2), rtol=1e-4)


def test_status_and_metadata(client: Client) -> None:
    for path in ("/v1/models/line", "/v1/models/line/versions/3"):
        status, answer = client.request("GET", path)
        [version] = answer["model_version_status"]
        assert (status, version["version"], version["state"]) == (200, "3", "AVAILABLE")
    status, answer = client.request("GET", "/v1/models/line/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "line", "signature_name": "", "version": "3"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"
    sizes = [dim["size"] for dim in signature["inputs"]["x"]["tensor_shape"]["dim"]]
    assert sizes == ["-1", "4"]
    assert signature["method_name"] == "tensorflow/serving/predict"


def test_200_concurrent_requests_are_all_answered(client: Client, model: Any) -> None:
    rows = np.random.default_rng(1).normal(size=(200, 4)).astype("float32")
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda row: client.predict({"instances": [row.tolist()]}), rows))
    assert {status for status, _ in answers} == {200}
    found = [answer["predictions"][0] for _, answer in answers]
    np.testing.assert_allclose(found, expected(model, rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{nonsense", "JSON Parse error"),
        ("[1]", "must be a JSON object"),
        ({}, "either 'instances' or 'inputs'"),
        ({"instances": []}, "at least one instance"),
        ({"instances": [[1, 2]]}, "has the shape [1, 2], but must be ['?', 4]"),
        ({"instances": [[1, 2, 3, "a"]]}, "not all numbers"),
        ({"instances": [[1, 2, 3], [1, 2, 3, 4]]}, "make no float32"),
        ({"instances": [{"y": [1, 2, 3, 4]}]}, "the inputs are ['x']"),
        ({"instances": [{"x": ROWS[0]}, ROWS[0]]}, "all objects, or all values"),
        ({"instances": ROWS, "signature_name": "no"}, "'no' not found"),
        ({"instances": [{"b64": "%"}], "signature_name": "serving_examples"}, "not base64"),
        ({"instances": ["junk"], "signature_name": "serving_examples"}, "arse"),
    ],
)
def test_a_malformed_request_gets_400_and_a_reason(client: Client, body: Any, reason: str) -> None:
    status, answer = client.predict(body)
    assert status == 400
    assert reason in answer["error"]


def test_an_unknown_model_version_or_path_gets_404(client: Client) -> None:
    for path in ("/v1/models/other:predict", "/v1/models/line/versions/9:predict", "/nothing"):
        status, answer = client.request("POST", path, {"instances": ROWS})
        assert status == 404
        assert answer["error"]


def test_a_connection_is_reused(client: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=120)
    for _ in range(3):
        connection.request("POST", "/v1/models/line:predict", json.dumps({"instances": ROWS}))
        assert connection.getresponse().read()
    assert connection.sock is not None
    connection.close()


def test_a_port_in_use_is_named(process: tuple[Any, Client], tmp_path: Path, model: Any) -> None:
    from tests.cli.in_process import invoke

    export(Line(), TrainedModel(model, 0, ""), str(tmp_path / "m"))
    done = invoke("serve", tmp_path / "m", "--port", process[1].port)
    assert done.returncode == 2
    assert "Choose another --port" in done.stderr


def test_metrics_count_the_requests(client: Client) -> None:
    client.predict({"instances": ROWS})
    client.predict("nothing")
    url = f"http://127.0.0.1:{client.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        text = response.read().decode()
    assert re.search(r'phalanx_serve_requests_total\{status="200"\} [1-9]', text)
    assert re.search(r'phalanx_serve_requests_total\{status="400"\} [1-9]', text)
    assert "phalanx_serve_queue_length 0.0" in text
    assert re.search(r"phalanx_serve_batch_rows_sum [1-9]", text)
    assert 'phalanx_serve_info{model="line",model_version="3"' in text
