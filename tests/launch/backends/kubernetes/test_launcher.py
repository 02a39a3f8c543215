"""The objects: compared whole, against the schemas, and against what schemas do not know."""

from __future__ import annotations

import copy
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.launch.kubernetes_checks import problems

from phalanx import JobError
from phalanx.cluster.spec import Role
from phalanx.cluster.tf_config import loads
from phalanx.launch.backends.kubernetes import KubernetesLauncher
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources
from phalanx.launch.kube.manifest import dump
from phalanx.launch.kube.options import PodOptions, Toleration

GOLDEN = Path(__file__).parents[2] / "golden"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "it's $(date)")),
    workers=2,
    ps=1,
    restarts=3,
    model_dir="gs://bucket/digits",
    environment={"N": "on", "MONEY": "$(CASH)"},
    resources={
        Role.WORKER: Resources(cpus=1.5, memory=1 << 30, gpus=1),
        Role.PS: Resources(memory=2 << 30),
    },
    time_limit=3600,
)
CONTAINER = Container(
    "digits:1",
    mounts=tuple(map(Mount.parse, ["/data:/data:ro", "models:/models", "nfs://server/a:/nfs"])),
    labels={"team": "vision"},
)
OPTIONS = PodOptions(
    node_selector={"disk": "fast"},
    tolerations=(Toleration.parse("gpu=yes:NoSchedule"),),
    priority_class="high",
    protect=True,
    tensorboard=True,
    credentials=b"the key",
)


def render(job: Job = JOB, container: Container = CONTAINER, options: PodOptions = OPTIONS) -> str:
    return KubernetesLauncher(container, options).plan(job).render() + "\n"


PLAIN = {"job": replace(JOB, resources={}), "container": Container("x"), "options": PodOptions()}
SHAPES: list[dict[str, Any]] = [
    {},
    PLAIN,
    {"job": replace(JOB, chief=False, evaluators=1, data_workers=2)},
]


def test_rendered_plan_matches_golden_file() -> None:
    assert render(replace(JOB, ps=0)) == (GOLDEN / "kubernetes.yaml").read_text()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_objects_match_the_kubernetes_schema(shape: dict[str, Any], version: str) -> None:
    for manifest in yaml.safe_load_all(render(**shape)):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_objects_pass_the_checks_beyond_the_schema(shape: dict[str, Any]) -> None:
    assert problems(render(**shape)) == []


def spoil(path: str, value: Any) -> str:
    """The rendered plan with one value changed: kind, then keys and numbers."""
    objects = copy.deepcopy(list(yaml.safe_load_all(render())))
    kind, *keys = path.split("/")
    node: Any = next(
        each for each in objects if f"{each['kind']} {each['metadata']['name']}".startswith(kind)
    )
    for key in keys[:-1]:
        node = node[int(key) if key.isdecimal() else key]
    node[keys[-1]] = value
    return dump(objects)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("Job/spec/template/spec/restartPolicy", "Always", "restartPolicy Always"),
        ("Deployment/spec/selector/matchLabels", {"a": "b"}, "does not match its own pods"),
        ("Job/metadata/name", "My_Job", "not a name"),
        (
            "Job digits-worker/spec/template/spec/containers/0/resources/limits/cpu",
            "lots",
            "not a quantity",
        ),
        (
            "Job digits-ps/spec/template/spec/containers/0/readinessProbe/tcpSocket/port",
            "http",
            "readinessProbe asks at the port http",
        ),
        ("Service/spec/selector", {"a": "b"}, "selects no pod"),
        ("Service/spec/ports/0/targetPort", 1, "no container has the port"),
        ("Job/spec/template/spec/containers/0/volumeMounts", [], "but mounts"),
    ],
)
def test_checks_detect_wrong_values(path: str, value: Any, said: str) -> None:
    assert any(said in problem for problem in problems(spoil(path, value)))


def test_checks_detect_an_unquoted_boolean() -> None:
    spoilt = render().replace('name: "N"', "name: N", 1)
    assert problems(spoilt) == ["N is a boolean to YAML 1.1"]


def find(job: Job, name: str, options: PodOptions | None = None) -> dict[str, Any]:
    """The Job of this name."""
    objects = KubernetesLauncher(Container("x"), options or PodOptions()).plan(job).objects
    return next(
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Job", name)
    )


def test_each_role_has_its_own_resources() -> None:
    needs = {
        role: find(JOB, f"digits-{role}")["spec"]["template"]["spec"]["containers"][0].get(
            "resources"
        )
        for role in ("chief", "worker", "ps")
    }
    assert needs["chief"] == {"requests": {"cpu": "500m", "memory": str(1 << 30)}}
    assert needs["worker"]["limits"] == {
        "cpu": "1500m",
        "memory": str(1 << 30),
        "nvidia.com/gpu": "1",
    }
    assert needs["ps"]["requests"] == {"cpu": "500m", "memory": str(2 << 30)}
    assert needs["ps"]["limits"] == {"memory": str(2 << 30)}


def test_training_tasks_have_no_liveness_probe() -> None:
    job = replace(JOB, evaluators=1, data_workers=1)
    probes = {}
    for role in ("chief", "worker", "ps", "evaluator", "dispatcher", "data-worker"):
        [main] = find(job, f"digits-{role}")["spec"]["template"]["spec"]["containers"]
        probes[role] = {name.removesuffix("Probe") for name in main if name.endswith("Probe")}
    serving = {"startup", "readiness", "liveness"}
    assert probes == {
        "chief": {"readiness"},
        "worker": {"readiness"},
        "ps": {"readiness"},
        "evaluator": set(),
        "dispatcher": serving,
        "data-worker": serving,
    }
    alone = find(replace(JOB, workers=0, ps=0), "digits-chief")["spec"]["template"]["spec"]
    assert "readinessProbe" not in alone["containers"][0]


def run_script(job: Job, role: str, index: int) -> dict[str, Any]:
    """What a pod's shell makes of its index."""
    job = replace(job, program=Program(ProgramKind.COMMAND, "env"), resources={}, environment={})
    main = find(job, f"digits-{role}")["spec"]["template"]["spec"]["containers"][0]
    variables = {entry["name"]: entry.get("value", "") for entry in main["env"]}
    done = subprocess.run(
        main["command"],
        env={"PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": str(index), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    found: dict[str, Any] = json.loads(lines["TF_CONFIG"]) if "TF_CONFIG" in lines else {}
    return found


@pytest.mark.parametrize(
    ("role", "index"), [("chief", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]
)
def test_pod_derives_its_task_from_its_index(role: str, index: int) -> None:
    config = run_script(replace(JOB, evaluators=1), role, index)
    assert config["model_dir"] == "gs://bucket/digits"
    assert config["cluster"] == {
        "chief": ["digits-chief-0.digits:2222"],
        "worker": ["digits-worker-0.digits:2222", "digits-worker-1.digits:2222"],
        "ps": ["digits-ps-0.digits:2222"],
    }
    assert str(loads(json.dumps(config)).task) == f"{role}-{index}"


def test_manifest_size_does_not_depend_on_the_number_of_tasks() -> None:
    assert len(render(replace(JOB, workers=10_000))) < len(render()) + 50


def test_tf_config_is_left_out_if_it_is_too_large() -> None:
    assert len(run_script(replace(JOB, workers=3000), "chief", 0)["cluster"]["worker"]) == 3000
    assert run_script(replace(JOB, workers=6000), "chief", 0) == {}


@pytest.mark.parametrize(
    ("chief", "first", "linger"), [(True, "digits-chief", 0), (False, "digits-worker", 10)]
)
def test_job_controller_waits_for_the_deciding_job(chief: bool, first: str, linger: int) -> None:
    controller = find(replace(JOB, chief=chief), "digits")["spec"]["template"]["spec"]
    assert controller["containers"][0]["command"][3:6] == ["suspend", "30", f"{first}={linger}"]
    assert controller["serviceAccountName"] == "digits-controller"


def test_job_controller_uses_an_existing_account() -> None:
    options = replace(OPTIONS, controller_account="trusted", service_account="tasks")
    text = render(options=options)
    assert "kind: Role" not in text
    controller = find(JOB, "digits", options)["spec"]["template"]["spec"]
    assert controller["serviceAccountName"] == "trusted"


def test_job_of_one_role_has_no_job_controller() -> None:
    text = render(replace(JOB, chief=False, ps=0))
    assert "controller" not in text


def test_tensorboard_without_a_model_directory_is_rejected() -> None:
    with pytest.raises(JobError, match="nothing to show without --model-dir"):
        render(replace(JOB, model_dir=None))


@pytest.mark.parametrize("text", ["gpu", "gpu=yes", "gpu:Never", ":NoSchedule"])
def test_invalid_toleration_is_rejected(text: str) -> None:
    with pytest.raises(JobError, match="is not a toleration"):
        Toleration.parse(text)
