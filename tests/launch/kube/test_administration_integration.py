"""What administrators expect: rights, quotas, queues, and that nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.launch.kube.conftest import Submit
from tests.servers.kubernetes import Kubernetes
from tests.servers.processes import find_tasks, wait_for

import phalanx.launch.kube.handle
from phalanx import JobError
from phalanx.cli.follow import follow_job
from phalanx.launch.base import TaskState
from phalanx.launch.job import Resources
from phalanx.launch.kube.options import Gang, PodOptions

RBAC = Path(__file__).parents[3] / "docs/guide/kubernetes-rbac.yaml"
SHAPE = {"workers": 1, "ps": 1}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phalanx.launch.kube.handle, "_START_SECONDS", 1.0)


def apply(cluster: Kubernetes, text: str) -> None:
    """What `kubectl apply` does, as an administrator."""
    with cluster.lock:
        for manifest in yaml.safe_load_all(text):
            cluster.objects[manifest["kind"], manifest["metadata"]["name"]] = manifest


def test_user_needs_exactly_the_rights_of_the_guide(cluster: Kubernetes, submit: Submit) -> None:
    apply(cluster, RBAC.read_text())
    objects = dict(cluster.objects)
    everything = PodOptions(protect=True, tensorboard=True, gang=Gang.VOLCANO)
    for backend in ("kubernetes", "kubeflow", "trainjob"):
        handle = submit(
            everything, backend=backend, context="user", workers=1, steps=1, model_dir="gs://b/d"
        )
        assert follow_job("train", handle) == 0
        assert len(handle.status()) == 2
        handle.cancel()
        assert handle.wait(60) is not None
    assert cluster.objects == objects
    granted = {
        f"{verb} {resource}"
        for rule in cluster.objects["Role", "phalanx-user"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {each for each in cluster.requests if cluster.requests[each]} == granted


def test_user_cannot_grant_more_rights_than_he_has(cluster: Kubernetes, submit: Submit) -> None:
    apply(
        cluster, RBAC.read_text().replace("[create, get, patch, delete]", "[create, get, delete]")
    )
    with pytest.raises(JobError, match="to grant RBAC permissions not currently held: patch jobs"):
        submit(context="user", workers=1)
    apply(cluster, "{kind: ServiceAccount, metadata: {name: trusted}}")
    submit(PodOptions(controller_account="trusted"), context="user", workers=1)


@pytest.mark.parametrize("backend", ["kubernetes", "kubeflow"])
def test_objects_are_deleted_some_time_after_the_end(
    cluster: Kubernetes, submit: Submit, backend: str
) -> None:
    options = PodOptions(ttl=2, tensorboard=True, protect=True)
    handle = submit(options, backend=backend, steps=1, model_dir="/models", **SHAPE)
    assert ("Secret", "train-job-secret") in cluster.objects
    wait_for(lambda: all("tensorboard" in name for _, name in cluster.objects))
    assert {kind for kind, _ in cluster.objects} == {"Deployment", "Service", "NetworkPolicy"}
    result = handle.wait(60)
    assert result is not None
    assert "the job was cancelled, or it ended longer ago than --ttl" in result.reason
    handle.cancel()
    assert cluster.objects == {}


@pytest.mark.parametrize("backend", ["kubernetes", "kubeflow", "trainjob"])
def test_job_waits_in_its_queue_and_its_end_is_not_undone(
    cluster: Kubernetes, submit: Submit, backend: str
) -> None:
    cluster.admits = False
    handle = submit(PodOptions(queue="team"), backend=backend, steps=1, **SHAPE)
    reason = "suspended until Kueue admits the job to its queue team"
    assert {(each.state, each.last_line) for each in handle.status()} == {
        (TaskState.WAITING, reason)
    }
    assert next(handle.reports()) == f"chief-0, worker-0, ps-0 wait: {reason}"
    assert not find_tasks("train.py")
    cluster.admits = True
    assert follow_job("train", handle) == 0
    assert not find_tasks("train.py")
    assert not [each for each in handle.status() if each.state is TaskState.RUNNING]


def test_every_container_has_the_requests_that_a_quota_demands(
    cluster: Kubernetes, submit: Submit
) -> None:
    hard = {"requests.cpu": "2500m", "requests.memory": "8Gi", "pods": "10"}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}}
    apply(cluster, yaml.safe_dump(quota))
    handle = submit(PodOptions(tensorboard=True), steps=1, model_dir="/models", **SHAPE)
    assert follow_job("train", handle) == 0
    handle.cancel()
    with pytest.raises(
        JobError, match=r"exceeded quota: team, requested: requests\.cpu=0\.5, used"
    ):
        submit(steps=100, workers=8)


def test_tensorboard_beyond_the_quota_is_reported_although_all_tasks_run(
    cluster: Kubernetes, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phalanx.launch.kube.handle, "_START_SECONDS", 10.0)
    quota = {"requests.cpu": "4"}
    apply(
        cluster,
        yaml.safe_dump(
            {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": quota}}
        ),
    )
    # The ReplicaSet reports its refusal after the tasks have started.
    cluster.deployment_delay = 2.0
    options = PodOptions(tensorboard=True, tensorboard_needs=Resources(cpus=16, memory=1 << 30))
    with pytest.raises(JobError, match=r"exceeded quota: team, requested: requests\.cpu=16, used"):
        submit(options, steps=600, model_dir="/models")
    assert [kind for kind, _ in cluster.objects] == ["ResourceQuota"]
    assert not find_tasks("train.py")


def test_pod_of_an_unknown_account_is_reported(submit: Submit) -> None:
    with pytest.raises(JobError, match='serviceaccount "nobody" not found'):
        submit(PodOptions(service_account="nobody"))


def test_old_cluster_is_reported(cluster: Kubernetes, submit: Submit) -> None:
    cluster.version = ("1", "32+")
    for backend in ("kubernetes", "trainjob"):
        with pytest.raises(JobError, match=r"the cluster has Kubernetes 1\.32, .* needs 1\.33 or"):
            submit(backend=backend)
    assert cluster.objects == {}
    submit(backend="kubeflow")


def test_objects_that_exist_already_are_named_with_the_command_that_deletes_them(
    cluster: Kubernetes, submit: Submit
) -> None:
    apply(cluster, "{kind: Job, metadata: {name: train-chief}, spec: {suspend: true}}")
    command = "kubectl delete job,networkpolicy,secret,service -n default -l phalanx/job=train"
    with pytest.raises(JobError, match=f"if it was applied with kubectl: {command}"):
        submit()
    assert list(cluster.objects) == [("Job", "train-chief")]


def test_missing_namespace_and_scheduler_are_reported(cluster: Kubernetes, submit: Submit) -> None:
    with pytest.raises(JobError, match=r'"nowhere" not found \(create the namespace, or'):
        submit(PodOptions(namespace="nowhere"))
    cluster.unknown = {"podgroups"}
    with pytest.raises(JobError, match=r"no PodGroup .*the scheduler of --gang is not installed"):
        submit(PodOptions(gang=Gang.COSCHEDULING))
