"""What the small Kubernetes of these tests does where the documentation of a real one is exact."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.servers.kubernetes import Kubernetes
from tests.servers.kubernetes.pods import Pod
from tests.servers.processes import wait_for

from phalanx.launch.kube.client import Client

Manifest = dict[str, Any]
IGNORE_DISRUPTIONS = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def on_codes(action: str, *codes: int, operator: str = "In") -> Manifest:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(codes)}}


def make_pod(script: str, **resources: Manifest) -> Manifest:
    main = {"name": "main", "command": ["sh", "-c", script], "resources": resources}
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"subdomain": "x", "containers": [main]}}


def create(cluster: Kubernetes, kind: str, name: str, **content: Any) -> Manifest:
    manifest: Manifest = {"kind": kind, "metadata": {"name": name, "namespace": "default"}}
    manifest["metadata"] |= content.pop("metadata", {})
    with cluster.lock:
        cluster.create((kind, name), {**manifest, **content})
    return cluster.objects[kind, name]


def create_job(cluster: Kubernetes, script: str, *rules: Manifest, **spec: Any) -> Manifest:
    defaults = {
        "completionMode": "Indexed",
        "completions": 1,
        "backoffLimitPerIndex": 0,
        "podFailurePolicy": {"rules": list(rules)},
        "template": make_pod(script),
    }
    return create(cluster, "Job", "x", spec=defaults | spec)


def conditions(job: Manifest) -> list[str]:
    return [each["type"] for each in job.get("status", {}).get("conditions", [])]


def running(cluster: Kubernetes) -> list[Pod]:
    with cluster.lock:
        return [pod for pod in cluster.pods if pod.phase() == "Running" and not pod.is_leaving()]


@pytest.mark.parametrize(
    ("rules", "tries"),
    [
        ([], 2),
        # The first rule that matches decides.
        ([on_codes("FailJob", 9), on_codes("Ignore", 9)], 1),
        ([on_codes("Count", 9), on_codes("FailJob", 9)], 2),
        ([on_codes("FailIndex", 8, operator="NotIn"), on_codes("Ignore", 9)], 1),
        # A rule for disruptions does not concern a program that fails.
        ([IGNORE_DISRUPTIONS, on_codes("FailJob", 9)], 1),
    ],
)
def test_rules_for_failures_apply_in_their_order(
    cluster: Kubernetes, rules: list[Manifest], tries: int
) -> None:
    job = create_job(cluster, "exit 9", *rules, backoffLimitPerIndex=1)
    wait_for(lambda: "Failed" in conditions(job))
    assert conditions(job) == ["FailureTarget", "Failed"]
    assert len(cluster.pods) == tries


@pytest.mark.parametrize(
    ("rules", "code", "replaced"),
    [([], 5, False), ([IGNORE_DISRUPTIONS], 5, True), ([on_codes("Ignore", 75)], 75, True)],
)
def test_evicted_pod_counts_unless_a_rule_ignores_it(
    cluster: Kubernetes, rules: list[Manifest], code: int, replaced: bool
) -> None:
    script = f"trap 'exit {code}' TERM; while true; do sleep 0.1; done"
    job = create_job(cluster, script, *rules)
    for _ in range(2 if replaced else 1):
        wait_for(lambda: running(cluster))
        with cluster.lock:
            evicted = running(cluster)[0]
            evicted.evict()
        wait_for(lambda pod=evicted: pod not in cluster.pods)  # type: ignore[misc]
    wait_for(lambda: running(cluster) if replaced else "Failed" in conditions(job))


def test_pods_that_a_suspension_ends_do_not_count(cluster: Kubernetes) -> None:
    job = create_job(cluster, "sleep 600")
    for _ in range(2):
        wait_for(lambda: running(cluster))
        job["spec"]["suspend"] = True
        wait_for(lambda: not cluster.pods)
        job["spec"]["suspend"] = False
    wait_for(lambda: running(cluster))


def create_tfjob(cluster: Kubernetes, restarts: str, limit: int, dynamic: bool) -> Manifest:
    replica = {"replicas": 1, "restartPolicy": restarts}
    # The operator sees that the pod is deleted before it sees that it has failed.
    pod = make_pod("trap 'sleep 1; exit 75' TERM; while true; do sleep 0.1; done")
    main = pod["spec"]["containers"][0]
    main |= {"name": "tensorflow", "ports": [{"name": "tfjob-port", "containerPort": 2222}]}
    replicas = {kind: {**replica, "template": pod} for kind in ("Chief", "Worker")}
    policy = {"cleanPodPolicy": "Running", "backoffLimit": limit}
    more = {"enableDynamicWorker": dynamic}
    spec = {"runPolicy": policy, "tfReplicaSpecs": replicas, **more}
    return create(cluster, "TFJob", "x", spec=spec)


@pytest.mark.parametrize(
    ("evicted", "dynamic", "failed"),
    [("worker", False, True), ("worker", True, False), ("chief", True, True)],
)
def test_operator_counts_a_replica_that_is_deleted_while_it_runs(
    cluster: Kubernetes, evicted: str, dynamic: bool, failed: bool
) -> None:
    job = create_tfjob(cluster, "Never", 0, dynamic)
    wait_for(lambda: len(running(cluster)) == 2)
    with cluster.lock:
        [pod] = [each for each in cluster.pods if evicted in each.hostname]
        pod.evict()
    wait_for(lambda: pod not in cluster.pods)
    wait_for(lambda: "Failed" in conditions(job) if failed else len(running(cluster)) == 2)
    assert ("Failed" in conditions(job)) is failed


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_operator_ends_a_job_when_its_restarts_reach_the_limit(
    cluster: Kubernetes, limit: int
) -> None:
    job = create_tfjob(cluster, "OnFailure", limit, dynamic=True)
    for _ in range(max(1, limit)):
        assert conditions(job) == []
        wait_for(lambda: len(running(cluster)) == 2)
        with cluster.lock:
            [pod] = [each for each in cluster.pods if "worker" in each.hostname]
            before = pod.restarts
            pod.send(9)
        wait_for(lambda pod=pod, before=before: pod.restarts > before)  # type: ignore[misc]
    wait_for(lambda: conditions(job) == ["Failed"])


def test_objects_go_with_their_owner_and_a_finished_job_after_its_time(cluster: Kubernetes) -> None:
    job = create_job(cluster, "exit 0", ttlSecondsAfterFinished=0)
    reference = {"kind": "Job", "name": "x", "uid": job["metadata"]["uid"]}
    create(cluster, "Secret", "x", metadata={"ownerReferences": [reference]})
    create(cluster, "Secret", "y")
    wait_for(lambda: list(cluster.objects) == [("Secret", "y")])
    wait_for(lambda: not cluster.pods)


def test_quota_without_a_prefix_is_one_of_requests(cluster: Kubernetes) -> None:
    create(cluster, "ResourceQuota", "team", spec={"hard": {"cpu": "1", "limits.memory": "1Gi"}})
    job = create_job(cluster, "sleep 600")
    complaint = cluster.complaints
    wait_for(lambda: "must specify cpu for: main" in complaint.get(("Job", "x"), ""))
    with cluster.lock:
        job["spec"]["template"] = make_pod(
            "sleep 600", requests={"cpu": "700m"}, limits={"memory": "2Gi"}
        )
    wait_for(lambda: "requested: limits.memory=2.14748e+09" in complaint.get(("Job", "x"), ""))
    with cluster.lock:
        job["spec"]["template"] = make_pod(
            "sleep 600", requests={"cpu": "700m"}, limits={"memory": "1Gi"}
        )
    wait_for(lambda: running(cluster))
    assert ("Job", "x") not in complaint


@pytest.mark.slow
def test_watch_continues_after_a_bookmark(
    cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("phalanx.launch.kube.client._WATCH_SECONDS", 1)
    snapshots = Client().watch_pods("app=x", "default")
    assert next(snapshots) == []
    hold = tmp_path / "hold"
    hold.touch()
    create_job(cluster, f"while [ -e {hold} ]; do sleep 0.1; done")
    assert len(next(snapshots)) == 1
    cluster.requests.clear()

    def end_pod() -> None:
        # Each watch ends with a bookmark, from which the next one goes on.
        wait_for(lambda: cluster.requests["watch pods"] >= 2)
        hold.unlink()

    ending = threading.Thread(target=end_pod)
    ending.start()
    while next(snapshots)[0]["status"]["phase"] != "Succeeded":
        pass
    ending.join()
    assert cluster.requests["list pods"] == 0
