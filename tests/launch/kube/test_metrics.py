"""Metrics on Kubernetes: who serves them, who may read them, and the progress in the Job."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.launch.kube.conftest import LAUNCHERS
from tests.launch.kubernetes_checks import problems

from phalanx import JobError
from phalanx.launch.backends.kubernetes.job_controller import ProgressReport, describe_progress
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.kube.options import Egress, PodOptions

JOB = Job(
    "digits",
    Program(ProgramKind.FILE, "train.py"),
    workers=2,
    environment={"PHALANX_GUARD_OPEN": "8080"},
)
OPTIONS = PodOptions(metrics_port=9400, metrics_from=("monitoring",))


def plan(backend: str, options: PodOptions = OPTIONS, job: Job = JOB) -> list[dict[str, Any]]:
    rendered = LAUNCHERS[backend](Container("digits:1"), options).plan(job).render()
    return list(yaml.safe_load_all(rendered))


def find_pods(objects: Any) -> Iterator[dict[str, Any]]:
    """Yield every template of a pod of a task, wherever it is."""
    if isinstance(objects, dict):
        if "containers" in objects.get("spec", {}):
            if "phalanx/role" in objects["metadata"]["labels"]:
                yield objects
            return
        objects = list(objects.values())
    if isinstance(objects, list):
        for each in objects:
            yield from find_pods(each)


@pytest.mark.parametrize("backend", LAUNCHERS)
def test_only_the_pod_of_the_chief_serves_metrics(backend: str) -> None:
    pods = {pod["metadata"]["labels"]["phalanx/role"]: pod for pod in find_pods(plan(backend))}
    assert set(pods) == {"chief", "worker"}
    main = pods["chief"]["spec"]["containers"][0]
    variables = {each["name"]: each.get("value") for each in main["env"]}
    assert pods["chief"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9400",
        "prometheus.io/path": "/metrics",
    }
    assert {"name": "metrics", "containerPort": 9400} in main["ports"]
    assert variables["PHALANX_METRICS_PORT"] == "9400"
    assert variables["PHALANX_GUARD_OPEN"] == "8080,9400"
    assert "annotations" not in pods["worker"]["metadata"]
    worker = pods["worker"]["spec"]["containers"][0]
    assert "PHALANX_METRICS_PORT" not in [each["name"] for each in worker["env"]]
    assert len(worker["ports"]) == 1


@pytest.mark.parametrize("backend", LAUNCHERS)
def test_network_policy_lets_only_the_namespaces_that_are_named_read_metrics(backend: str) -> None:
    policy = next(each for each in plan(backend) if each["kind"] == "NetworkPolicy")
    peers, metrics = policy["spec"]["ingress"]
    assert "ports" not in peers
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert metrics == {
        "from": [{"podSelector": {}}, {"namespaceSelector": namespace}],
        "ports": [{"port": 9400, "protocol": "TCP"}],
    }


@pytest.mark.parametrize("backend", LAUNCHERS)
def test_nothing_is_opened_unless_it_is_asked_for(backend: str) -> None:
    assert "metrics" not in LAUNCHERS[backend](Container("x"), PodOptions()).plan(JOB).render() or (
        backend == "kubernetes"  # the text of the job controller mentions them
    )
    policy = next(each for each in plan(backend, PodOptions()) if each["kind"] == "NetworkPolicy")
    assert len(policy["spec"]["ingress"]) == 1


def test_objects_are_valid() -> None:
    options = PodOptions(metrics_port=9400, egress=(Egress(),))
    for manifest in plan("kubernetes", options):
        kubernetes_validate.validate(manifest, "1.37", strict=True)
    launcher = LAUNCHERS["kubernetes"](Container("digits:1"), options)
    assert problems(launcher.plan(JOB).render()) == []


def test_job_controller_may_annotate_its_own_job_and_knows_where_the_metrics_are() -> None:
    objects = plan("kubernetes")
    role = next(each for each in objects if each["kind"] == "Role")
    assert role["rules"][0]["resourceNames"] == ["digits", "digits-chief", "digits-worker"]
    controller = next(each for each in objects if each["metadata"]["name"] == "digits" and
                      each["kind"] == "Job")  # fmt: skip
    main = controller["spec"]["template"]["spec"]["containers"][0]
    variables = {each["name"]: each["value"] for each in main["env"]}
    assert (
        variables["PHALANX_METRICS_URL"] == "http://digits-chief-0.digits.default.svc:9400/metrics"
    )
    assert variables["PHALANX_PROGRESS_JOB"] == "digits"


@pytest.mark.parametrize(
    ("options", "job", "message"),
    [
        (OPTIONS, Job("a", JOB.program, chief=False, workers=2), "needs a chief"),
        (PodOptions(metrics_from=("monitoring",)), JOB, "set --metrics-port"),
        (PodOptions(metrics_port=2222), JOB, "TensorFlow's port"),
        (PodOptions(metrics_port=1, metrics_from=("A b",)), JOB, "no namespace"),
    ],
)
def test_wrong_options_are_errors(options: PodOptions, job: Job, message: str) -> None:
    with pytest.raises(JobError, match=message):
        plan("kubernetes", options, job)


METRICS = """\
# HELP phalanx_step The number of the last step, also over restarts.
phalanx_step 400.0
phalanx_last_step 1000.0
phalanx_loss 0.0213
phalanx_examples_per_second 812.4
phalanx_trainer_steps{task="worker-0"} 200.0
"""


def test_progress_is_one_line() -> None:
    assert describe_progress(METRICS) == "step 400 of 1000, loss 0.0213, 812 examples/s"
    assert describe_progress("phalanx_step 3.0\n") == "step 3"
    assert describe_progress("python_info 1.0\n") == ""


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, *_: Any) -> None:
        pass


class Jobs:
    """The client of the job controller, as far as it is asked here."""

    def __init__(self) -> None:
        self.annotated: list[tuple[str, str]] = []

    def annotate(self, name: str, value: str) -> None:
        self.annotated.append((name, value))


def test_job_controller_annotates_its_job_with_the_progress() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        jobs = Jobs()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        environ = {"PHALANX_METRICS_URL": url, "PHALANX_PROGRESS_JOB": "digits"}
        report = ProgressReport(jobs, environ)  # type: ignore[arg-type]
        report.update()
        report.update()
        server.shutdown()
    assert jobs.annotated == [("digits", "step 400 of 1000, loss 0.0213, 812 examples/s")]


def test_job_controller_goes_on_without_metrics() -> None:
    jobs = Jobs()
    environ = {"PHALANX_METRICS_URL": "http://127.0.0.1:1/metrics", "PHALANX_PROGRESS_JOB": "a"}
    ProgressReport(jobs, environ).update()  # type: ignore[arg-type]
    ProgressReport(jobs, {}).update()  # type: ignore[arg-type]
    assert jobs.annotated == []
