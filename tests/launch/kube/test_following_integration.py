"""Following a job: one watch, why tasks wait, and what is left when the job is over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.launch.kube.conftest import Submit
from tests.servers.kubernetes import Kubernetes
from tests.servers.processes import find_tasks, wait_for

import phalanx.cli.follow
import phalanx.launch.kube.client
import phalanx.launch.kube.handle
from phalanx import JobError, OutputGoneError
from phalanx.cli.follow import follow_job, print_output
from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState
from phalanx.launch.kube.options import PodOptions

UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu.",
        }
    ],
}
NO_IMAGE = {
    "phase": "Pending",
    "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phalanx.launch.kube.handle, "_START_SECONDS", 1.0)
    monkeypatch.setattr(phalanx.launch.kube.handle, "_REASON_SECONDS", 0.5)
    monkeypatch.setattr(phalanx.cli.follow, "_RESULT_SECONDS", 0.5)


def test_followers_share_one_watch_and_see_why_tasks_wait(
    cluster: Kubernetes, submit: Submit, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hold").touch()
    cluster.waiting = UNSCHEDULABLE
    handle = submit(chief=False, workers=12, steps=1)
    cluster.requests.clear()
    followed = threading.Thread(target=follow_job, args=("train", handle))
    followed.start()
    seen = ""

    def said(text: str) -> bool:
        nonlocal seen
        seen += "".join(capfd.readouterr())
        return text in seen

    wait_for(lambda: said("and 9 more wait: Unschedulable: 0/3 nodes are available: 3 Insuffi"))
    cluster.waiting = NO_IMAGE
    wait_for(lambda: said("wait: ImagePullBackOff"))
    cluster.waiting = {}
    wait_for(lambda: said("all tasks have started"))
    (tmp_path / "hold").unlink()
    followed.join(120)
    assert not followed.is_alive()
    assert said("train succeeded")
    assert seen.count("wait: Unschedulable") == 1
    assert "worker-11 | I am worker 11" in seen
    # The watch makes one, and a few look at the states before and after; it was one for each
    # task and second.
    assert cluster.requests["list pods"] <= 8
    assert cluster.requests["watch pods"] == 1


def test_user_who_may_not_watch_pods_can_follow(
    cluster: Kubernetes, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phalanx.launch.kube.client, "_LIST_SECONDS", 0.2)
    rules = [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets", "services"], "verbs": ["create"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create"]},
    ]
    cluster.objects["Role", "some"] = {"rules": rules}
    binding = {"roleRef": {"name": "some"}, "subjects": [{"name": "user"}]}
    cluster.objects["RoleBinding", "some"] = binding
    handle = submit(steps=1, context="user")
    assert "step 0" in list(handle.logs(Task(Role.CHIEF), follow=True))
    assert cluster.requests["watch pods"] >= 1


def test_job_whose_controller_has_no_rights_is_reported(
    cluster: Kubernetes, submit: Submit, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.objects["ServiceAccount", "nobody"] = {}
    handle = submit(PodOptions(controller_account="nobody"), steps=6000, workers=1)
    assert follow_job("train", handle) == 1
    assert 'cannot get resource "jobs"' in capfd.readouterr().err
    assert {each.state for each in handle.status()} == {TaskState.RUNNING}
    assert set(find_tasks("train.py")) == {"chief-0", "worker-0"}
    result = handle.wait(0)
    assert result is not None
    assert "end the tasks that still run: phalanx cancel train" in result.reason


def test_output_of_ended_tasks_is_reported_as_gone(
    submit: Submit, capfd: pytest.CaptureFixture[str]
) -> None:
    handle = submit(steps=5, workers=1, ps=1)
    assert follow_job("train", handle) == 0
    # A worker may finish by itself, and its output is kept. A parameter server is ended.
    assert "I am ps 0" in capfd.readouterr().out
    assert "step 4" in list(handle.logs(Task(Role.WORKER)))
    with pytest.raises(OutputGoneError, match="the output of ps-0 is gone: Kubernetes deletes"):
        list(handle.logs(Task(Role.PS)))
    assert not print_output(handle, [Task(Role.PS), Task(Role.WORKER)])
    stdout, stderr = capfd.readouterr()
    assert "worker-0 | step 4" in stdout
    assert "phalanx: the output of ps-0 is gone" in stderr
    # To follow a job that is over does not wait for an answer that cannot come.
    assert follow_job("train", handle) == 0


def test_failed_task_is_named_without_its_pod(cluster: Kubernetes, submit: Submit) -> None:
    handle = submit(chief=False, workers=1, steps="many")
    result = handle.wait(60)
    assert result is not None
    assert result.reason == "worker-0 failed with exit code 1"
    with cluster.lock:
        cluster.pods.clear()
    result = handle.wait(0)
    assert result is not None
    assert result.reason == "worker-0 failed, and its pod has been deleted since"
    assert result.failed == Task(Role.WORKER)


@pytest.mark.parametrize(
    ("backend", "operator"),
    [("kubeflow", "Kubeflow's training operator"), ("trainjob", "Kubeflow Trainer")],
)
def test_missing_operator_is_reported(
    cluster: Kubernetes,
    submit: Submit,
    backend: str,
    operator: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.unknown = {"tfjobs", "trainjobs", "trainingruntimes"}
    with pytest.raises(JobError, match=f"{operator} is not installed"):
        submit(backend=backend)
    assert cluster.objects == {}
    cluster.unknown = set()
    cluster.operated = False
    handle = submit(backend=backend)
    assert handle.status()[0].last_line == ""
    monkeypatch.setattr(phalanx.launch.kube.handle, "_OPERATOR_SECONDS", 0.0)
    sentence = f"{operator} has not touched the "
    assert sentence in handle.status()[0].last_line
    assert sentence in next(handle.reports())


@pytest.mark.parametrize("told_by", ["status", "event"])
def test_watch_begins_again_when_it_has_expired(
    cluster: Kubernetes, submit: Submit, told_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phalanx.launch.kube.client, "_RECONNECT_SECONDS", 0.1)
    handle = submit(steps=1)
    cluster.expired = told_by
    snapshots = handle.client.watch_pods("phalanx/job=train", "default")
    before = cluster.requests["list pods"]
    assert len(next(snapshots)) == 1
    assert len(next(snapshots)) == 1
    assert cluster.requests["list pods"] == before + 2
