"""The stack: compared whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from phalanx import ClusterError, JobError
from phalanx.cluster.spec import Role
from phalanx.launch.backends.swarm import NodeLabel, SwarmLauncher
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources

GOLDEN = Path(__file__).parents[1] / "golden"
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "it's $HOME")),
    workers=1,
    restarts=2,
    environment={"SEED": "1"},
    resources={Role.WORKER: Resources(cpus=1.5, memory=1 << 30, gpus=1)},
)
CONTAINER = Container(
    "digits:1",
    mounts=tuple(map(Mount.parse, ["/data:/data:ro", "models:/models", "nfs://server/a:/nfs"])),
    labels={"team": "vision"},
    credentials="/home/ann/key.json",
)
LABELS = tuple(map(NodeLabel.parse, ["disk=fast", "worker:gpu=yes"]))


def render(job: Job = JOB) -> str:
    launcher = SwarmLauncher(CONTAINER, Path("jobs/digits"), "r1", node_labels=LABELS)
    return launcher.plan(job).render() + "\n"


def test_rendered_plan_matches_golden_file() -> None:
    assert render() == (GOLDEN / "swarm.yaml").read_text()


def test_without_restarts_swarm_restarts_nothing() -> None:
    services = yaml.safe_load(render(replace(JOB, restarts=0)))["services"]
    assert services["chief-0"]["deploy"]["restart_policy"] == {"condition": "none"}


def test_data_workers_are_services() -> None:
    services = yaml.safe_load(render(replace(JOB, data_workers=2)))["services"]
    assert services["worker-0"]["environment"]["PHALANX_DATA_SERVICE"] == "dispatcher-0:2222"
    assert list(services)[-3:] == ["dispatcher-0", "data-worker-0", "data-worker-1"]


def test_tensorboard_is_a_service_with_a_published_port() -> None:
    launcher = SwarmLauncher(CONTAINER, Path("jobs/digits"), "r1", tensorboard=True)
    with pytest.raises(JobError, match="add --public-tensorboard to publish it on every node"):
        launcher.plan(replace(JOB, model_dir="/models/digits"))
    container = replace(CONTAINER, tensorboard_credentials="/home/ann/reader.json")
    launcher = replace(launcher, container=container, public_tensorboard=True)
    text = launcher.plan(replace(JOB, model_dir="/models/digits")).render()
    service = yaml.safe_load(text)["services"]["tensorboard"]
    assert service["command"][3] == "--logdir=/models/digits"
    assert service["ports"] == ["6006:6006"]
    assert [each["source"] for each in service["secrets"]] == ["tensorboard-credentials"]
    assert yaml.safe_load(text)["secrets"]["tensorboard-credentials"] == {
        "file": "/home/ann/reader.json"
    }
    with pytest.raises(JobError, match="nothing to show without --model-dir"):
        launcher.plan(JOB)


@pytest.mark.parametrize("text", ["gpu", "=yes", "gpu=", "worker:=yes"])
def test_invalid_node_label_is_rejected(text: str) -> None:
    with pytest.raises(JobError, match="is not a node label"):
        NodeLabel.parse(text)


def test_node_label_of_an_unknown_role_is_rejected() -> None:
    with pytest.raises(ClusterError, match="there is no role 'boss'"):
        NodeLabel.parse("boss:gpu=yes")
