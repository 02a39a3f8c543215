"""The controllers of the emulator, which follow the documented rules of the real ones.

Those of Jobs, of Kubeflow's training operator, of Trainer and JobSet, and of Kueue.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.servers.kubernetes.cluster import Kubernetes
    from tests.servers.kubernetes.pods import Pod

Manifest = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
FINISHED = ("Complete", "Succeeded", "Failed")


def control_job(cluster: Kubernetes, job: Manifest) -> None:
    spec, status = job["spec"], job.setdefault("status", {"conditions": []})
    if any(each["type"] in ("Complete", "Failed") for each in status["conditions"]):
        return
    name = job["metadata"]["name"]
    mine = [pod for pod in cluster.pods if pod.owner == ("Job", name)]
    running = [pod for pod in mine if pod.phase() == "Running"]
    status["terminating"] = sum(pod.terminated_at is not None for pod in running)
    status["active"] = len(running) - status["terminating"]
    ending = status.get("ending")
    if ending or spec.get("suspend"):
        # Suspending deletes the pods that run, and the output of a pod is deleted with it.
        status.pop("started", None)
        for pod in running:
            pod.terminate()
        if ending and not running:
            status["conditions"].append(ending)
        return
    started = status.setdefault("started", time.monotonic())
    if time.monotonic() - started > spec.get("activeDeadlineSeconds", float("inf")):
        message = "Job was active longer than specified deadline"
        status["ending"] = _condition("Failed", "DeadlineExceeded", message)
        return
    indexed = spec.get("completionMode") == "Indexed"
    done = []
    for index in map(str, range(spec.get("completions", 1))):
        pods = [pod for pod in mine if pod.index == index]
        failed = bool(pods) and pods[-1].phase() == "Failed"
        if not pods or (failed and _is_tried_again(spec, pods)):
            hostname = f"{name}-{index}" if indexed else name
            given = {"JOB_COMPLETION_INDEX": index} if indexed else {}
            owner, labels = ("Job", name), {"batch.kubernetes.io/job-name": name}
            cluster.create_pod(owner, hostname, spec["template"], labels, given)
        elif failed:
            status.update({"failedIndexes": index} if indexed else {})
            status["ending"] = _condition("Failed", "FailedIndexes", "Job has failed indexes")
            return
        done.append(bool(pods) and pods[-1].phase() == "Succeeded")
    if all(done):
        status["ending"] = _condition("Complete", "CompletionsReached", "")


def control_tfjob(cluster: Kubernetes, job: Manifest) -> None:
    """Reconcile a TFJob as the training operator does: set TF_CONFIG, and clean up."""
    spec, status = job["spec"], job.setdefault("status", {"conditions": []})
    if any(each["type"] in ("Succeeded", "Failed") for each in status["conditions"]):
        return
    name, prefix = job["metadata"]["name"], "training.kubeflow.org"
    if spec["runPolicy"].get("suspend"):
        return
    mine = [pod for pod in cluster.pods if pod.owner == ("TFJob", name)]
    if len(mine) < sum(each["replicas"] for each in spec["tfReplicaSpecs"].values()):
        replicas = [
            (kind.lower(), number, replica["template"])
            for kind, replica in spec["tfReplicaSpecs"].items()
            for number in range(replica["replicas"])
        ]
        for kind, number, template in replicas:
            labels = {
                f"{prefix}/job-name": name,
                f"{prefix}/replica-type": kind,
                f"{prefix}/replica-index": str(number),
            }
            # The operator sets no TF_CONFIG for a single replica.
            given = {"TF_CONFIG": tf_config(job, kind, number)} if len(replicas) > 1 else {}
            hostname = f"{name}-{kind}-{number}"
            if hostname in [pod.hostname for pod in mine]:
                continue
            cluster.create_pod(("TFJob", name), hostname, template, labels, given)
        return
    ending = None
    for pod in mine:
        kind = pod.labels[f"{prefix}/replica-type"]
        replica = next(each for key, each in spec["tfReplicaSpecs"].items() if key.lower() == kind)
        if pod.phase() != "Failed" or pod.disrupted:
            continue
        spent = sum(each.restarts for each in mine)
        if replica["restartPolicy"] == "OnFailure" and spent < spec["runPolicy"]["backoffLimit"]:
            pod.restarts += 1
            pod.start()
        else:
            ending = _condition("Failed", "TFJobFailed", f"TFJob {name} has failed")
    deciding = "chief" if "Chief" in spec["tfReplicaSpecs"] else "worker"
    watched = [pod for pod in mine if pod.labels[f"{prefix}/replica-type"] == deciding]
    if all(pod.phase() == "Succeeded" for pod in watched):
        ending = _condition("Succeeded", "TFJobSucceeded", "")
    if ending is not None:
        assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
        for pod in mine:
            pod.terminate()
        status["conditions"].append(ending)


def replicated_jobs(cluster: Kubernetes, name: str) -> list[Manifest]:
    """Return the Jobs of the runtime that the TrainJob refers to, with its number of nodes."""
    spec = cluster.objects["TrainJob", name]["spec"]
    reference = spec["runtimeRef"]
    runtime = cluster.objects[reference["kind"], reference["name"]]["spec"]
    jobs: list[Manifest] = runtime["template"]["spec"]["replicatedJobs"]
    for each in jobs:
        labels = each["template"].get("metadata", {}).get("labels", {})
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer":
            number = spec["trainer"]["numNodes"]
            each["template"]["spec"].update(completions=number, parallelism=number)
    return jobs


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
            pods = [
                pod
                for pod in mine
                if pod.index == str(index) and labels.items() <= pod.labels.items()
            ]
            failed = bool(pods) and pods[-1].phase() == "Failed"
            if not pods or (failed and _is_tried_again(spec, pods)):
                hostname = f"{name}-{each['name']}-0-{index}"
                given = {"JOB_COMPLETION_INDEX": str(index)}
                owner = ("TrainJob", name)
                cluster.create_pod(owner, hostname, spec["template"], labels, given)
            elif failed:
                message = f"jobset failed: job {name}-{each['name']}-0 failed"
                status["ending"] = _condition("Failed", "FailedJobs", message)
                return
            if each["name"] in deciding:
                done.append(bool(pods) and pods[-1].phase() == "Succeeded")
    if all(done):
        status["ending"] = _condition("Complete", "AllJobsCompleted", "")


def control_queue(cluster: Kubernetes, job: Manifest) -> None:
    """Admit a job as Kueue does.

    A job of a queue is suspended until it is admitted. One that was admitted and that somebody
    else suspends is resumed, unless it has finished.
    """
    status = job.get("status", {"conditions": []})
    policy = job["spec"].get("runPolicy", job["spec"])
    queued = QUEUE in job.get("metadata", {}).get("labels", {})
    finished = [each for each in status["conditions"] if each["type"] in FINISHED]
    if queued and policy.get("suspend") and cluster.admits and not finished:
        policy["suspend"] = False


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
    content = {"cluster": cluster, "task": task, "environment": "cloud"}
    return json.dumps(content, separators=(",", ":"))


def _is_tried_again(spec: Manifest, pods: list[Pod]) -> bool:
    """Whether a Job creates another pod after one that failed; ignored failures do not count."""
    actions = [_find_action(spec, pod) for pod in pods]
    if actions[-1] == "FailJob":
        return False
    limit = int(spec["backoffLimitPerIndex" if "completionMode" in spec else "backoffLimit"])
    return actions[-1] == "Ignore" or actions.count("Count") <= limit


def _find_action(spec: Manifest, pod: Pod) -> str:
    """Return the action of the first rule of the podFailurePolicy that matches a failed pod."""
    code = pod.process.poll()
    for rule in spec["podFailurePolicy"]["rules"]:
        kinds = [each["type"] for each in rule.get("onPodConditions", [])]
        if code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
        if pod.disrupted and "DisruptionTarget" in kinds:
            return str(rule["action"])
    return "Count"


def _condition(kind: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": "True", "reason": reason, "message": message}
