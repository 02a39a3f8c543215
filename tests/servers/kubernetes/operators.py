"""Kubeflow's operators: the training operator of TFJobs, and Trainer with JobSet."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from tests.servers.kubernetes.controllers import count_failures, is_tried_again, make_condition

if TYPE_CHECKING:
    from tests.servers.kubernetes.cluster import Kubernetes
    from tests.servers.kubernetes.pods import Pod

Manifest = dict[str, Any]


def control_tfjob(cluster: Kubernetes, job: Manifest) -> None:
    """Reconcile a TFJob as the training operator 1.9 does."""
    spec, status = job["spec"], job.setdefault("status", {"conditions": []})
    if any(each["type"] in ("Succeeded", "Failed") for each in status["conditions"]):
        return
    name, policy = job["metadata"]["name"], spec["runPolicy"]
    mine = [pod for pod in cluster.pods if pod.owner == ("TFJob", name)]
    if policy.get("suspend"):
        status.pop("started", None)
        for pod in mine:
            pod.terminate()
        return
    ending = None
    started = status.setdefault("started", time.monotonic())
    if _is_past_backoff_limit(spec, status, mine):
        message = f"Job {name} has failed because it has reached the specified backoff limit"
        ending = make_condition("Failed", "TFJobFailed", message)
    elif time.monotonic() - started > policy.get("activeDeadlineSeconds", float("inf")):
        message = f"Job {name} has failed because it was active longer than specified deadline"
        ending = make_condition("Failed", "TFJobFailed", message)
    else:
        ending = _reconcile_replicas(cluster, job, mine)
    if ending is not None:
        assert policy["cleanPodPolicy"] == "Running"
        for pod in mine:
            pod.terminate()
        status["conditions"].append(ending)


def _is_past_backoff_limit(spec: Manifest, status: Manifest, mine: list[Pod]) -> bool:
    """Restart containers as a kubelet does, and whether the operator then ends the job.

    It does so when the restarts reach the limit, and not only when they exceed it.
    """
    limit = spec["runPolicy"].get("backoffLimit")
    restarted = [pod for pod in mine if _replica(spec, pod)["restartPolicy"] == "OnFailure"]
    for pod in restarted:
        if pod.phase() == "Failed" and not pod.terminated_at:
            pod.restarts += 1
            pod.start()
    if limit is None:
        return False
    restarts = sum(pod.restarts for pod in restarted if pod.phase() == "Running")
    failed = sum(pod.phase() == "Failed" for pod in mine)
    active = sum(pod.phase() == "Running" and not pod.terminated_at for pod in mine)
    total = sum(each["replicas"] for each in spec["tfReplicaSpecs"].values())
    is_new = failed > status.get("failed", 0) and active != total
    return bool(is_new and limit == 0) or restarts >= max(1, limit)


def _reconcile_replicas(cluster: Kubernetes, job: Manifest, mine: list[Pod]) -> Manifest | None:
    """Create the pods that are missing; return the condition with which the job ends, if any."""
    name, spec, prefix = job["metadata"]["name"], job["spec"], "training.kubeflow.org"
    status, deciding = job["status"], "Chief" if "Chief" in spec["tfReplicaSpecs"] else "Worker"
    several = sum(each["replicas"] for each in spec["tfReplicaSpecs"].values()) > 1
    restarting, ending, status["failed"] = False, None, 0
    for key, replica in spec["tfReplicaSpecs"].items():
        kind, failed, succeeded = key.lower(), 0, 0
        for number in range(replica["replicas"]):
            hostname = f"{name}-{kind}-{number}"
            pod = next((each for each in mine if each.hostname == hostname), None)
            if pod is None:
                labels = {
                    f"{prefix}/job-name": name,
                    f"{prefix}/replica-type": kind,
                    f"{prefix}/replica-index": str(number),
                }
                # The operator sets no TF_CONFIG for a single replica.
                given = {"TF_CONFIG": tf_config(job, kind, number)} if several else {}
                cluster.create_pod(("TFJob", name), hostname, replica["template"], labels, given)
                continue
            if pod.phase() == "Failed" and replica["restartPolicy"] == "OnFailure":
                pod.terminated_at = pod.terminated_at or time.monotonic()
                restarting = True
            # A pod that is deleted while it runs counts as failed.
            failed += pod.phase() == "Failed" or pod.is_leaving()
            succeeded += pod.phase() == "Succeeded"
        status["failed"] += failed
        if key == deciding and succeeded == replica["replicas"]:
            return make_condition("Succeeded", "TFJobSucceeded", "")
        tolerated = restarting or (spec.get("enableDynamicWorker") and key == "Worker")
        if failed and not tolerated:
            message = f"TFJob {name} has failed because {failed} {key} replica(s) failed."
            ending = make_condition("Failed", "TFJobFailed", message)
    return ending


def _replica(spec: Manifest, pod: Pod) -> Manifest:
    """Return the replica spec of a pod of a TFJob."""
    kind = pod.labels["training.kubeflow.org/replica-type"]
    found: Manifest = next(
        each for key, each in spec["tfReplicaSpecs"].items() if key.lower() == kind
    )
    return found


def replicated_jobs(cluster: Kubernetes, name: str) -> list[Manifest]:
    """Return the Jobs of the runtime that the TrainJob refers to, with its number of nodes."""
    spec = cluster.objects["TrainJob", name]["spec"]
    reference = spec["runtimeRef"]
    runtime = cluster.objects[reference["kind"], reference["name"]]["spec"]
    jobs: list[Manifest] = runtime["template"]["spec"]["replicatedJobs"]
    for each in jobs:
        if _is_trainer(each):
            number = spec["trainer"]["numNodes"]
            each["template"]["spec"].update(completions=number, parallelism=number)
    return jobs


def _is_trainer(replicated_job: Manifest) -> bool:
    labels = replicated_job["template"].get("metadata", {}).get("labels", {})
    return bool(labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer")


def control_trainjob(cluster: Kubernetes, job: Manifest) -> None:
    """Reconcile a TrainJob as Trainer and JobSet do: an Indexed Job for each role."""
    status = job.setdefault("status", {"conditions": []})
    if any(each["type"] in ("Complete", "Failed") for each in status["conditions"]):
        return
    name, prefix = job["metadata"]["name"], "jobset.sigs.k8s.io"
    if job["spec"].get("suspend"):
        return
    mine = [pod for pod in cluster.pods if pod.owner == ("TrainJob", name)]
    ending = status.get("ending")
    if ending:
        for pod in mine:
            pod.terminate()
        if all(pod.process.poll() is not None for pod in mine):
            status["conditions"].append(ending)
        return
    runtime = cluster.objects["TrainingRuntime", job["spec"]["runtimeRef"]["name"]]["spec"]
    deciding = runtime["template"]["spec"]["successPolicy"]["targetReplicatedJobs"]
    done = []
    for each in replicated_jobs(cluster, name):
        spec = each["template"]["spec"]
        labels = {f"{prefix}/jobset-name": name, f"{prefix}/replicatedjob-name": each["name"]}
        for index in range(spec["completions"]):
            hostname = f"{name}-{each['name']}-0-{index}"
            pods = [
                pod
                for pod in mine
                if pod.index == str(index) and labels.items() <= pod.labels.items()
            ]
            actions = count_failures(spec, status, hostname, pods)
            failed = not pods or pods[-1].phase() == "Failed"
            if failed and is_tried_again(spec, actions):
                given = {"JOB_COMPLETION_INDEX": str(index)}
                if cluster.takes_progress and _is_trainer(each):
                    given |= cluster.make_trainjob_token(name)
                owner = ("TrainJob", name)
                cluster.create_pod(owner, hostname, spec["template"], labels, given)
            elif failed:
                message = f"jobset failed: job {name}-{each['name']}-0 failed"
                status["ending"] = make_condition("Failed", "FailedJobs", message)
                return
            if each["name"] in deciding:
                done.append(bool(pods) and pods[-1].phase() == "Succeeded")
    if all(done):
        status["ending"] = make_condition("Complete", "AllJobsCompleted", "")


def tf_config(job: Manifest, kind: str, number: int) -> str:
    """Return the TF_CONFIG that the operator sets for a replica."""
    cluster: dict[str, list[str]] = {}
    for key, replica in job["spec"]["tfReplicaSpecs"].items():
        [main] = replica["template"]["spec"]["containers"]
        assert main["name"] == "tensorflow"
        port = next(each["containerPort"] for each in main["ports"] if each["name"] == "tfjob-port")
        if key != "Evaluator":
            cluster[key.lower()] = [
                f"{job['metadata']['name']}-{key.lower()}-{place}."
                f"{job['metadata']['namespace']}.svc:{port}"
                for place in range(replica["replicas"])
            ]
    task = {"type": kind, "index": number}
    content: Manifest = {"cluster": cluster, "task": task, "environment": "cloud"}
    if job["spec"].get("enableDynamicWorker"):
        # A worker is told the parameter servers and itself, a parameter server itself only.
        servers = cluster.get("ps", [])
        known: Manifest = {"worker": {}, "ps": []}
        if kind == "worker":
            known = {"worker": {str(number): cluster["worker"][number]}, "ps": servers}
        elif kind == "ps":
            known["ps"] = [servers[number]]
        content = {"cluster": known, "task": task}
    return json.dumps(content, separators=(",", ":"))
