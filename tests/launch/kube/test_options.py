"""Options of pods: where they end up in the objects of each backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from click.testing import CliRunner
from tests.launch.kube.conftest import LAUNCHERS
from tests.launch.kubeflow_schemas import TFJOB, TRAINJOB
from tests.launch.pod_security import templates

from phalanx import JobError
from phalanx.cli import cli
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind, Resources
from phalanx.launch.kube.options import Egress, Gang, PodOptions, Toleration

jsonschema: Any = pytest.importorskip("jsonschema")
JOB = Job("digits", Program(ProgramKind.FILE, "train.py"), workers=2, ps=1, model_dir="gs://b/d")
Manifest = dict[str, Any]


def make(backend: str = "kubernetes", **options: Any) -> dict[str, Manifest]:
    """The objects of a job, by kind and name; those that Kubernetes knows are validated."""
    plan = LAUNCHERS[backend](Container("digits:1"), PodOptions(**options)).plan(JOB)
    for each in plan.objects:
        if not any(name in each["apiVersion"] for name in ("kubeflow", "x-k8s", "volcano")):
            kubernetes_validate.validate(each, "1.37", strict=True)
    return {f"{each['kind']} {each['metadata']['name']}": each for each in plan.objects}


@pytest.mark.parametrize("backend", LAUNCHERS)
def test_image_pull_secrets_are_those_of_every_pod(backend: str) -> None:
    objects = make(backend, image_pull_secrets=("registry", "mirror"), tensorboard=True)
    found = [each["spec"]["imagePullSecrets"] for each in templates(list(objects.values()))]
    assert found == [[{"name": "registry"}, {"name": "mirror"}]] * len(found)
    assert len(found) == (5 if backend == "kubernetes" else 4)


@pytest.mark.parametrize("backend", LAUNCHERS)
def test_every_container_has_requests(backend: str) -> None:
    objects = make(
        backend,
        tensorboard=True,
        tensorboard_needs=Resources(cpus=2, memory=1 << 30),
        controller_needs=Resources(cpus=0.2, memory=1 << 20),
    )
    found = [
        (main["name"], main["resources"]["requests"])
        for each in templates(list(objects.values()))
        for main in each["spec"]["containers"]
    ]
    assert all({"cpu", "memory"} <= set(requests) for _, requests in found)
    assert dict(found)["tensorboard"] == {"cpu": "2000m", "memory": str(1 << 30)}
    if backend == "kubernetes":
        assert dict(found)["controller"] == {"cpu": "200m", "memory": str(1 << 20)}


def test_egress_allows_peers_names_storage_the_api_and_the_targets() -> None:
    assert make()["NetworkPolicy digits"]["spec"]["policyTypes"] == ["Ingress"]
    targets = tuple(map(Egress.parse, ["10.0.0.0/8:8020", "2049", "fd00::/8"]))
    objects = make(egress=targets)
    tasks, controller = objects["NetworkPolicy digits"], objects["NetworkPolicy digits-controller"]
    peers = {"podSelector": {"matchLabels": {"phalanx/job": "digits", "phalanx/part": "task"}}}
    names = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    assert tasks["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert tasks["spec"]["egress"] == [
        {"to": [peers]},
        {"ports": names},
        {"ports": [{"port": 443, "protocol": "TCP"}]},
        {
            "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "ports": [{"port": 8020, "protocol": "TCP"}],
        },
        {"ports": [{"port": 2049, "protocol": "TCP"}]},
        {"to": [{"ipBlock": {"cidr": "fd00::/8"}}]},
    ]
    pods = objects["Job digits"]["spec"]["template"]["metadata"]["labels"]
    chosen = controller["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= pods.items()
    ports = [each["port"] for each in controller["spec"]["egress"][0]["ports"]]
    assert ports == [443, 6443]
    assert len(make(egress=(Egress.parse("none"),))["NetworkPolicy digits"]["spec"]["egress"]) == 3


@pytest.mark.parametrize("text", ["", "all", "0", "70000", "10.0.0.1/8", "10.0.0.0/8:x"])
def test_invalid_egress_is_rejected(text: str) -> None:
    with pytest.raises(JobError, match="is no target for --egress: write 443"):
        Egress.parse(text)


@pytest.mark.parametrize("backend", LAUNCHERS)
def test_jobs_of_a_queue_are_suspended_until_they_are_admitted(backend: str) -> None:
    queued = {
        name: each
        for name, each in make(backend, queue="team").items()
        if "kueue.x-k8s.io/queue-name" in each["metadata"]["labels"]
    }
    suspended = [each["spec"].get("runPolicy", each["spec"])["suspend"] for each in queued.values()]
    roles = ["Job digits-chief", "Job digits-worker", "Job digits-ps"]
    names = {"kubernetes": roles, "kubeflow": ["TFJob digits"], "trainjob": ["TrainJob digits"]}
    assert list(queued) == names[backend]
    assert suspended == [True] * len(queued)
    # The job controller would wait in the queue behind jobs that wait for it.
    if backend == "kubernetes":
        controller = make(queue="team")["Job digits"]["spec"]["template"]["spec"]
        assert controller["containers"][0]["command"][3] == "deadline"


@pytest.mark.parametrize(
    ("gang", "group", "joins"),
    [
        (
            Gang.KUBERNETES,
            {"schedulingPolicy": {"gang": {"minCount": 4}}},
            lambda pod: pod["spec"]["schedulingGroup"]["podGroupName"],
        ),
        (
            Gang.COSCHEDULING,
            {"minMember": 4},
            lambda pod: pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"],
        ),
        (
            Gang.VOLCANO,
            {"minMember": 4},
            lambda pod: pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"],
        ),
    ],
)
def test_tasks_of_a_gang_are_one_pod_group(
    gang: Gang, group: Manifest, joins: Callable[[Manifest], str]
) -> None:
    objects = make(gang=gang)
    assert objects["PodGroup digits"]["spec"] == group
    for role in ("chief", "worker", "ps"):
        pod = objects[f"Job digits-{role}"]["spec"]["template"]
        assert joins(pod) == "digits"
        assert pod["spec"].get("schedulerName") == ("volcano" if gang is Gang.VOLCANO else None)
    with pytest.raises(KeyError):
        joins(objects["Job digits"]["spec"]["template"])


def test_operators_make_the_pod_group_of_a_gang() -> None:
    policy = make("kubeflow", gang=Gang.VOLCANO)["TFJob digits"]["spec"]["runPolicy"]
    assert policy["schedulingPolicy"] == {"minAvailable": 4}
    runtime = make("trainjob", gang=Gang.COSCHEDULING)["TrainingRuntime digits"]["spec"]
    assert runtime["podGroupPolicy"] == {"coscheduling": {}}
    for backend in ("kubeflow", "trainjob"):
        with pytest.raises(JobError, match="cannot use --gang kubernetes: use coscheduling or"):
            make(backend, gang=Gang.KUBERNETES)


def test_operators_accept_queues_and_gangs() -> None:
    options: Manifest = {"queue": "team", "gang": Gang.VOLCANO, "scheduler": "volcano"}
    jsonschema.validate(make("kubeflow", **options)["TFJob digits"], TFJOB)
    jsonschema.validate(make("trainjob", **options)["TrainJob digits"], TRAINJOB)


def test_time_to_live() -> None:
    def ttl(each: Manifest) -> int:
        return int(each["spec"].get("runPolicy", each["spec"])["ttlSecondsAfterFinished"])

    objects = make(ttl=60)
    assert ttl(objects["Job digits"]) == 60
    # The job controller must have seen how they ended.
    assert ttl(objects["Job digits-worker"]) == 3600
    assert ttl(make("kubeflow")["TFJob digits"]) == 86400


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kueue.x-k8s.io/queue-name", "does not put the job into a queue: use --queue"),
        ("phalanx/job", "Phalanx sets this label itself"),
        ("app.kubernetes.io/component", "Phalanx sets this label itself"),
    ],
)
def test_labels_that_phalanx_sets_are_rejected(name: str, said: str) -> None:
    launcher = LAUNCHERS["kubernetes"](Container("digits:1", labels={name: "a"}), PodOptions())
    with pytest.raises(JobError, match=f"--label {name}=a.* {said}"):
        launcher.plan(JOB)


@pytest.mark.parametrize(
    "flag",
    [
        "image_pull_secrets",
        "queue",
        "scheduler",
        "priority_class",
        "service_account",
        "controller_account",
        "tensorboard_account",
    ],
)
def test_invalid_names_are_rejected(flag: str) -> None:
    options: Manifest = {flag: ("../a",) if flag == "image_pull_secrets" else "../a"}
    option = f"--{flag.removesuffix('s').replace('_', '-')}"
    if flag.endswith("class"):
        option = "--priority-class"
    with pytest.raises(JobError, match=rf"{option} '\.\./a' is no name in Kubernetes"):
        make(**options)


@pytest.mark.parametrize("text", ["a b:NoSchedule", "gpu=a b:NoSchedule", "A.b/gpu:NoExecute"])
def test_invalid_taints_are_rejected(text: str) -> None:
    with pytest.raises(JobError, match="is no taint in Kubernetes: use at most 63 letters"):
        make(tolerations=(Toleration.parse(text),))


def test_labels_and_node_selectors_may_have_a_prefix() -> None:
    labels = {"example.com/team": "vision", "cloud.google.com/gke-accelerator": "nvidia-l4"}
    options = PodOptions(node_selector=labels)
    plan = LAUNCHERS["kubernetes"](Container("digits:1", labels=labels), options).plan(JOB)
    for template in templates(list(plan.objects)):
        assert labels.items() <= template["metadata"]["labels"].items()
        assert template["spec"]["nodeSelector"] == labels
    for name in ("Example.com/team", "a b"):
        launcher = LAUNCHERS["kubernetes"](Container("digits:1", labels={name: "x"}), options)
        with pytest.raises(JobError, match="a prefix before a slash is a domain in lower case"):
            launcher.plan(JOB)


@pytest.mark.parametrize("source", ["My Secret", "a/b c", "../a", "a/"])
def test_invalid_secrets_are_rejected(source: str) -> None:
    launcher = LAUNCHERS["kubernetes"](Container("digits:1"), PodOptions())
    with pytest.raises(JobError, match=f"--env-from-secret TOKEN={source} is no Secret and key"):
        launcher.plan(replace(JOB, secrets={"TOKEN": source}))


@pytest.mark.parametrize("given", ["0", "59s"])
def test_time_to_live_must_let_followers_read_the_result(given: str) -> None:
    for backend in ("kubernetes", "kubeflow"):
        command = ["launch", backend, "--dry-run", "--image", "d:1", "--ttl", given, "train.py"]
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 2
        assert f"Invalid value for '--ttl': {given} is not from 60 to" in done.output
