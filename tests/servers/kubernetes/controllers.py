"""The controllers of Jobs and of Kueue, which follow the documented rules of the real ones."""

from __future__ import annotations

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
        # Suspending deletes the pods that run, and the output of a pod is deleted with it. They do
        # not count as failures.
        status.pop("started", None)
        for pod in running:
            pod.counted = True
            pod.terminate()
        if ending and not running:
            status["conditions"].append(ending)
        return
    started = status.setdefault("started", time.monotonic())
    if time.monotonic() - started > spec.get("activeDeadlineSeconds", float("inf")):
        message = "Job was active longer than specified deadline"
        _end_job(status, make_condition("Failed", "DeadlineExceeded", message))
        return
    indexed = spec.get("completionMode") == "Indexed"
    done = []
    for index in map(str, range(spec.get("completions", 1))):
        pods = [pod for pod in mine if pod.index == index]
        actions = count_failures(spec, status, index, pods)
        if "FailJob" in actions:
            message = f"Pod of index {index} matches FailJob rule"
            _end_job(status, make_condition("Failed", "PodFailurePolicy", message))
            return
        failed = not pods or pods[-1].phase() == "Failed"
        if failed and is_tried_again(spec, actions):
            hostname = f"{name}-{index}" if indexed else name
            given = {"JOB_COMPLETION_INDEX": index} if indexed else {}
            owner, labels = ("Job", name), {"batch.kubernetes.io/job-name": name}
            cluster.create_pod(owner, hostname, spec["template"], labels, given)
        elif failed:
            status.update({"failedIndexes": index} if indexed else {})
            reason = "MaxFailedIndexesExceeded" if indexed else "BackoffLimitExceeded"
            message = "Job has exceeded the specified maximal number of failed indexes"
            if not indexed:
                message = "Job has reached the specified backoff limit"
            _end_job(status, make_condition("Failed", reason, message))
            return
        done.append(bool(pods) and pods[-1].phase() == "Succeeded")
    if all(done):
        _end_job(status, make_condition("Complete", "CompletionsReached", ""))


def _end_job(status: Manifest, ending: Manifest) -> None:
    """Say how a Job ends; it has ended when none of its pods runs any more."""
    kind = "FailureTarget" if ending["type"] == "Failed" else "SuccessCriteriaMet"
    status["conditions"].append({**ending, "type": kind})
    status["ending"] = ending


def count_failures(spec: Manifest, status: Manifest, index: str, pods: list[Pod]) -> list[str]:
    """Return the actions for all failures of an index, also of pods that are deleted."""
    actions: list[str] = status.setdefault("failures", {}).setdefault(index, [])
    for pod in pods:
        if pod.phase() == "Failed" and not pod.counted:
            pod.counted = True
            actions.append(find_action(spec, pod))
    return actions


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


def is_tried_again(spec: Manifest, actions: list[str]) -> bool:
    """Whether a Job creates another pod after these failures, of which ignored ones do not count.

    The delays of 10 s and more before that are left out.
    """
    if {"FailJob", "FailIndex"} & set(actions):
        return False
    limit = int(spec["backoffLimitPerIndex" if "completionMode" in spec else "backoffLimit"])
    return actions.count("Count") <= limit


def find_action(spec: Manifest, pod: Pod) -> str:
    """Return the action of the first rule of the podFailurePolicy that matches a failed pod."""
    code = pod.exit_code() or 0
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions", [])
        if codes and code:
            right = codes.get("containerName", pod.container["name"]) == pod.container["name"]
            if right and (code in codes["values"]) is (codes["operator"] == "In"):
                return str(rule["action"])
        elif any((each["type"], each["status"]) == pod.condition() for each in conditions):
            return str(rule["action"])
    return "Count"


def make_condition(kind: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": "True", "reason": reason, "message": message}
