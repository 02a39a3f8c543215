"""The metrics that a run serves to Prometheus."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError
from phalanx.train.runtime.metrics_address import find_metrics_address

pytest.importorskip("prometheus_client", reason="pip install 'phalanx[metrics]'")

from prometheus_client import CollectorRegistry

from phalanx.train.hooks.metrics import _Readings, _RunMetrics

Metrics = dict[str, float]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def scrape(port: int) -> Metrics:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return {k: float(v) for k, _, v in (line.rpartition(" ") for line in lines if line[0] != "#")}


class Scrape(hooks.Hook):
    """Reads the metrics after each save, which comes after the other hooks."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.found: list[Metrics] = []

    def due(self, step: int) -> int:
        return step + 1

    def on_save(self, session: Any, path: str) -> None:
        # The first checkpoint is written before the session begins.
        if session.step:
            self.found.append(scrape(self.port))


def test_run_serves_its_metrics(tmp_path: Path) -> None:
    port = free_port()
    watch = Scrape(port)
    config = phalanx.RunConfig(
        model_dir=str(tmp_path), train_steps=20, save_steps=10, metrics_port=port
    )
    phalanx.run(Line(), config, hooks=[watch])
    first, last = watch.found[0], watch.found[-1]
    assert (first["phalanx_step"], last["phalanx_step"]) == (10, 20)
    assert last["phalanx_last_step"] == 20
    assert last["phalanx_steps_total"] == 20
    assert last["phalanx_examples_total"] == 20 * 32
    assert last["phalanx_step_seconds_count"] == 19
    assert last["phalanx_checkpoint_seconds_count"] >= 1
    assert last["phalanx_checkpoint_timestamp_seconds"] > 0
    assert last['phalanx_data_wait_seconds_total{task="chief-0"}'] > 0
    assert last['phalanx_computing_seconds_total{task="chief-0"}'] > 0
    assert last["phalanx_loss"] > 0
    assert last['phalanx_trainer_steps{task="chief-0"}'] == 20
    assert last['phalanx_task_restarts_total{task="chief-0"}'] == 0
    assert last["process_resident_memory_bytes"] > 0
    with pytest.raises(OSError):
        scrape(port)
    watch.found.clear()
    phalanx.run(Line(), config.replace(train_steps=30), hooks=[watch])
    assert watch.found[-1]["phalanx_step"] == 30
    assert watch.found[-1]["phalanx_steps_total"] == 10


def test_run_counts_the_ids_of_growing_tables(tmp_path: Path) -> None:
    inputs = keras.Input((), dtype="int64")
    layer = phalanx.layers.DynamicEmbedding(2, max_rows=4, name="users")
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.range(6).map(lambda n: (n, tf.zeros([1]))).batch(1)
    port = free_port()
    watch = Scrape(port)
    experiment = phalanx.Experiment(model=lambda: model, train_data=lambda: data)
    config = phalanx.RunConfig(
        model_dir=str(tmp_path), train_steps=6, global_batch_size=1, save_steps=3,
        metrics_port=port,
    )  # fmt: skip
    phalanx.run(experiment, config, hooks=[watch])
    last = watch.found[-1]
    assert last['phalanx_table_rows{table="users/embeddings"}'] == 4
    found = [last[f'phalanx_table_ids{{event="{e}",table="users/embeddings"}}']
             for e in ("admitted", "evicted", "expired")]  # fmt: skip
    assert found == [6, 2, 0]


def test_address_is_loopback_unless_it_is_asked_for() -> None:
    config = phalanx.RunConfig(metrics_port=9400)
    assert find_metrics_address(config, {}) == ("127.0.0.1", 9400)
    launched = {"PHALANX_METRICS_PORT": "9401", "PHALANX_METRICS_HOST": "::"}
    assert find_metrics_address(phalanx.RunConfig(), launched) == ("::", 9401)
    assert find_metrics_address(phalanx.RunConfig(), {}) is None


@pytest.mark.parametrize(
    ("settings", "environ", "message"),
    [
        ({"metrics_port": 70000}, {}, "metrics_port is 70000"),
        ({"metrics_host": "::"}, {}, "set metrics_port"),
        ({}, {"PHALANX_METRICS_PORT": "http"}, "PHALANX_METRICS_PORT is http"),
    ],
)
def test_wrong_address_is_an_error(settings: Any, environ: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_metrics_address(phalanx.RunConfig(**settings), environ)


def test_run_without_the_library_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from phalanx.metrics_endpoint import check_metrics_library as check\n"
        "check()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"pip install 'phalanx\[metrics\]'", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--async", "--sync"])
def test_chief_of_parameter_servers_serves_metrics(tmp_path: Path, mode: str) -> None:
    port = free_port()
    program = tmp_path / "train.py"
    program.write_text(
        "import phalanx\n"
        "from tests.train.hooks.test_metrics import Scrape\n"
        "from tests.train.small_experiment import Line\n"
        "config = phalanx.RunConfig.parse()\n"
        "watch = Scrape(config.metrics_port)\n"
        "phalanx.run(Line(), config, hooks=[watch])\n"
        "if watch.found: print('FOUND', watch.found[-1])\n"
    )
    command = [sys.executable, "-m", "phalanx", "run", "--workers", "1", "--ps", "1"]
    flags = [mode, "--train-steps", "40", "--save-steps", "20", "--metrics-port", str(port)]
    done = subprocess.run(
        [*command, str(program), "--model-dir", str(tmp_path / "run"), *flags],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = eval(done.stdout.partition("FOUND")[2].splitlines()[0])
    assert found["phalanx_step"] >= 40
    assert found['phalanx_task_restarts_total{task="worker-0"}'] == 0
    for part in ("data_wait", "computing", "peer_wait"):
        assert found[f'phalanx_{part}_seconds_total{{task="worker-0"}}'] > 0


def test_dashboard_and_page_name_only_metrics_that_exist() -> None:
    from phalanx.serving.batcher import ServedModel
    from phalanx.serving.metrics import make_metrics

    docs = Path(__file__).parents[3] / "docs/operations"
    registry = CollectorRegistry()
    _RunMetrics(registry)
    registry.register(_Readings("", dict))
    make_metrics(ServedModel("line", 1, {}), registry)
    known = {sample.name for family in registry.collect() for sample in family.samples}
    for family in registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["", "_bucket", "_sum", "_count"]}
        known |= {family.name + each for each in suffixes.get(family.type, ["", "_info"])}
    dashboard = json.loads((docs / "grafana.json").read_text())
    texts = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    texts += [str(dashboard["templating"]), (docs / "metrics.md").read_text()]
    named = {name for text in texts for name in re.findall(r"\bphalanx_[a-z_]+", text)}
    assert len(named) > 15
    assert named - known == set()
    page = (docs / "metrics.md").read_text()
    missing = [each.name for each in registry.collect() if each.name not in page]
    assert missing == []
    positions = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(positions)) == len(positions)
