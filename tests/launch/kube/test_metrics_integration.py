"""Real training on Kubernetes, whose progress the cluster shows and Prometheus reads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.launch.kubeflow_schemas import TRAINER_STATUS
from tests.servers import kubernetes
from tests.servers.processes import wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
Training = tuple[kubernetes.Kubernetes, dict[str, str]]

pytestmark = pytest.mark.slow

TOY = Path(__file__).parents[2] / "train/programs/toy.py"
DOCS = Path(__file__).parents[3] / "docs/operations/metrics.md"
# It trains until there is the file.
PROGRAM = """
import sys
from pathlib import Path

import phalanx
from toy import Toy

class StopAtFile(phalanx.hooks.Hook):
    def after_step(self, session):
        if Path("finish").exists():
            session.request_stop("there is the file")

config = phalanx.RunConfig(model_dir="model", log_steps=1000, train_steps=10**8)
phalanx.run(Toy(), config, hooks=[StopAtFile()])
"""
# The usual relabelling of pods by their annotations. Debian builds Prometheus without its discovery
# of pods, so a file lists them, with the labels that the discovery gives them.
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: pods
  file_sd_configs:
  - files: [{pods}]
  relabel_configs:
  - source_labels: [__meta_kubernetes_pod_annotation_prometheus_io_scrape]
    action: keep
    regex: "true"
  - source_labels: [__meta_kubernetes_pod_annotation_prometheus_io_path]
    target_label: __metrics_path__
    regex: (.+)
  - source_labels: [__address__, __meta_kubernetes_pod_annotation_prometheus_io_port]
    regex: ([^:]+)(?::\\d+)?;(\\d+)
    replacement: $1:$2
    target_label: __address__
  - source_labels: [__meta_kubernetes_pod_label_phalanx_role]
    target_label: role
"""


def run_phalanx(folder: Path, environ: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "phalanx", *words]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A chief and a worker that train on Kubernetes."""
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("networks need root and ip (iproute2)")
    pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")
    folder = tmp_path_factory.mktemp("training")
    shutil.copy(TOY, folder)
    (folder / "train.py").write_text(PROGRAM)
    with kubernetes.running(tmp_path_factory.mktemp("cluster"), folder, isolated=True) as (
        cluster,
        variables,
    ):
        environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), **variables}
        options = ["--image", "a", "--python", sys.executable, "--workers", "1"]
        serving = ["--metrics-port", "9400", "--name", "digits"]
        run_phalanx(folder, environ, "launch", "kubernetes", *options, *serving, "train.py")
        yield cluster, variables
        (folder / "finish").touch()
        run_phalanx(folder, environ, "logs", "-f", "digits")


def list_pods(cluster: kubernetes.Kubernetes) -> list[dict[str, Any]]:
    with cluster.lock:
        return [pod.manifest() for pod in cluster.pods]


def read_metrics(cluster: kubernetes.Kubernetes) -> dict[str, float]:
    """Read the metrics of the pod that says that it has some, where it says."""
    [(address, notes)] = [
        (pod["status"]["podIP"], pod["metadata"]["annotations"])
        for pod in list_pods(cluster)
        if pod["metadata"]["annotations"].get("prometheus.io/scrape") == "true"
    ]
    url = f"http://{address}:{notes['prometheus.io/port']}{notes['prometheus.io/path']}"
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
    except OSError:
        # The chief has not begun to train.
        assert "Failed" not in [pod["status"]["phase"] for pod in list_pods(cluster)]
        return {}
    return {each.name: each.value for family in families for each in family.samples}


def test_metrics_are_where_the_annotations_say(training: Training) -> None:
    cluster, _ = training
    wait_for(lambda: read_metrics(cluster).get("phalanx_step", 0) > 0)
    assert read_metrics(cluster)["phalanx_last_step"] == 10**8


def test_job_shows_its_progress(training: Training) -> None:
    cluster, _ = training

    def annotations() -> dict[str, str]:
        with cluster.lock:
            return dict(cluster.objects["Job", "digits"]["metadata"].get("annotations", {}))

    wait_for(lambda: re.match(r"step [1-9]\d* of 100000000, ", annotations()["phalanx/progress"])
             if "phalanx/progress" in annotations() else False)  # fmt: skip
    first = annotations()["phalanx/progress"]
    wait_for(lambda: annotations()["phalanx/progress"] != first)


def discover(cluster: kubernetes.Kubernetes) -> list[dict[str, Any]]:
    """Return the targets that Prometheus finds on a cluster: each port of each pod."""
    targets = []
    for pod in list_pods(cluster):
        notes = {"annotation": pod["metadata"]["annotations"], "label": pod["metadata"]["labels"]}
        labels = {
            f"__meta_kubernetes_pod_{kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value
            for kind, values in notes.items()
            for name, value in values.items()
        }
        for port in (each for main in pod["spec"]["containers"] for each in main["ports"]):
            address = f"{pod['status']['podIP']}:{port['containerPort']}"
            targets.append({"targets": [address], "labels": labels})
    return targets


def query(address: str, text: str) -> list[dict[str, Any]]:
    url = f"http://{address}/api/v1/query?query={urllib.parse.quote(text)}"
    with urllib.request.urlopen(url, timeout=60) as response:
        found: list[dict[str, Any]] = json.load(response)["data"]["result"]
    return found


@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")
def test_prometheus_reads_the_chief_alone(training: Training, tmp_path: Path) -> None:
    cluster, _ = training
    config, log, pods = tmp_path / "prometheus.yml", tmp_path / "log", tmp_path / "pods.json"
    pods.write_text(json.dumps(discover(cluster)))
    config.write_text(CONFIG.format(pods=pods))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        listens = re.compile(r'msg="Listening on" address=(\S+)')
        wait_for(lambda: listens.search(log.read_text()) or process.poll() is not None)
        found = listens.search(log.read_text())
        assert found is not None, log.read_text()
        wait_for(lambda: query(found[1], "phalanx_step > 0"))
        [up] = query(found[1], "up")
        assert (up["metric"]["role"], up["value"][1]) == ("chief", "1")
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus is not installed")
def test_alerts_of_the_guide_are_valid(tmp_path: Path) -> None:
    [alerts] = re.findall(r"```yaml\n(- alert.*?)```", DOCS.read_text(), re.DOTALL)
    rules = tmp_path / "rules.yml"
    rules.write_text("groups:\n- name: phalanx\n  rules:\n" + re.sub("(?m)^", "  ", alerts))
    subprocess.run(["promtool", "check", "rules", str(rules)], check=True, timeout=120)


def test_trainjob_shows_its_progress_in_its_status(launching: Phalanx, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")
    shutil.copy(TOY, tmp_path)
    (tmp_path / "cluster").mkdir()
    with kubernetes.running(tmp_path / "cluster", tmp_path) as (cluster, variables):
        cluster.takes_progress = True
        options = ["--image", "a", "--python", sys.executable, "--name", "digits"]
        program = ["toy.py", "--train-steps", 300, "--model-dir", "model"]
        done = launching("launch", "trainjob", *options, *program, **variables)
        assert done.returncode == 0, done.stderr
        ended = launching("logs", "-f", "digits", **variables)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        status = cluster.objects["TrainJob", "digits"]["status"]["trainerStatus"]
    jsonschema.validate({"trainerStatus": status}, TRAINER_STATUS)
    assert status["progressPercentage"] == 100
    assert {"name": "step", "value": "300"} in status["metrics"]
