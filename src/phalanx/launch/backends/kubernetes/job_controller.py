"""The job controller: ends the Jobs of one job together, from a pod of its own.

The pod runs this text with `python -c`, so it uses the standard library only. Kubernetes ends the
pods of one Job together, but not those of several Jobs. When the deciding Job is complete, the
controller lets the others finish for a while, so that their output is kept. Then it suspends them,
which ends their pods and keeps their records. When a Job has failed, it suspends the others at
once. Parameter servers come last. If the chief serves metrics, the controller annotates its own Job
with the progress of the training. A Job of a queue is not suspended, because Kueue would resume it:
a deadline ends it.
"""

from __future__ import annotations

import http
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JobObject = dict[str, Any]

# The pod is not restarted after this exit code.
JOB_FAILED = 3
PROGRESS = "phalanx/progress"
_POLL_SECONDS = 5.0
_END_POLL_SECONDS = 1.0
_RESPONSE_SECONDS = 30.0
_OUTAGE_SECONDS = 600.0
_PROGRESS_SECONDS = 30.0
_METRICS_SECONDS = 3.0
_LARGEST_METRICS = 1 << 20
_SHOWN = ("phalanx_step", "phalanx_last_step", "phalanx_loss", "phalanx_examples_per_second")
_END_SECONDS = 60.0
_TRANSIENT = (401, 408, 429, 500, 502, 503, 504)


class JobsClient:
    """Reads and suspends Jobs in the namespace of this pod, as its service account."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._account = Path(environ["PHALANX_ACCOUNT"])
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
        self._server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def read(self, name: str) -> JobObject:
        """Return a Job. One that was deleted counts as failed."""
        try:
            return self._request("GET", name, None)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            return {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}

    def end(self, name: str, by_deadline: bool) -> None:
        change = {"activeDeadlineSeconds": 1} if by_deadline else {"suspend": True}
        self._request("PATCH", name, {"spec": change})

    def annotate(self, name: str, value: str) -> None:
        change = {"metadata": {"annotations": {PROGRESS: value}}}
        self._request_once("PATCH", name, change)

    def _request(self, method: str, name: str, change: object) -> JobObject:
        """Return the response. A request that fails for a transient reason is repeated."""
        deadline = time.monotonic() + _OUTAGE_SECONDS
        while True:
            try:
                return self._request_once(method, name, change)
            except urllib.error.HTTPError as error:
                if error.code not in _TRANSIENT or time.monotonic() > deadline:
                    raise
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _request_once(self, method: str, name: str, change: object) -> JobObject:
        # Kubernetes renews the token from time to time.
        token = (self._account / "token").read_text()
        namespace = (self._account / "namespace").read_text()
        request = urllib.request.Request(
            f"{self._server}/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
            data=None if change is None else json.dumps(change).encode(),
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
            },
            method=method,
        )
        trusted = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        with urllib.request.urlopen(
            request, timeout=_RESPONSE_SECONDS, context=trusted
        ) as response:
            content: JobObject = json.load(response)
            return content


class ProgressReport:
    """Annotates a Job with the progress that the chief's metrics tell; never fails."""

    def __init__(self, jobs: JobsClient, environ: Mapping[str, str]) -> None:
        self._jobs = jobs
        self._url = environ.get("PHALANX_METRICS_URL", "")
        self._job = environ.get("PHALANX_PROGRESS_JOB", "")
        self._next = 0.0
        self._last = ""

    def update(self) -> None:
        """Read the metrics if it is time, and write the annotation if it has changed."""
        if not self._url or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_SECONDS
        try:
            with urllib.request.urlopen(self._url, timeout=_METRICS_SECONDS) as response:
                text = describe_progress(response.read(_LARGEST_METRICS).decode())
            if text and text != self._last:
                self._jobs.annotate(self._job, text)
                self._last = text
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.FORBIDDEN:
                print("the job controller may not annotate its Job with the progress", flush=True)
                self._url = ""
        except (OSError, ValueError):
            # The chief may not have begun to train, or may be restarting.
            return


def describe_progress(metrics: str) -> str:
    """Say in a line how far a run is: `step 400 of 1000, loss 0.021, 812 examples/s`."""
    values: dict[str, float] = {}
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name in _SHOWN:
            values[name.removeprefix("phalanx_")] = float(value)
    if "step" not in values:
        return ""
    text = f"step {values['step']:.0f}"
    if values.get("last_step"):
        text += f" of {values['last_step']:.0f}"
    if values.get("loss"):
        text += f", loss {values['loss']:.4g}"
    if values.get("examples_per_second"):
        text += f", {values['examples_per_second']:.0f} examples/s"
    return text


def control_jobs(
    jobs: JobsClient,
    progress: ProgressReport,
    by_deadline: bool,
    grace: float,
    lingers: Mapping[str, float],
) -> int:
    """Wait until the first Job completes or any Job fails, then end the others.

    `lingers` are the seconds that each Job may run on after the success; -1 for servers, which are
    ended when all other Jobs have ended.
    """
    names = list(lingers)
    while True:
        current = {name: jobs.read(name) for name in names}
        if _has_condition(current[names[0]], "Complete", "SuccessCriteriaMet"):
            code, reason = 0, f"{names[0]} is complete"
            break
        failed = [
            name for name in names if _has_condition(current[name], "Failed", "FailureTarget")
        ]
        if failed:
            code, reason = JOB_FAILED, f"{failed[0]} has failed or was deleted"
            break
        progress.update()
        time.sleep(_POLL_SECONDS)
    print(f"{reason}: ending the other Jobs", flush=True)
    if code:
        lingers = {name: min(seconds, 0) for name, seconds in lingers.items()}
    _end_jobs(jobs, by_deadline, grace, lingers)
    return code


def _end_jobs(
    jobs: JobsClient, by_deadline: bool, grace: float, lingers: Mapping[str, float]
) -> None:
    """End each Job when its time is up, and wait until no pod runs any more."""
    began = time.monotonic()
    deadline = began + max(lingers.values()) + 2 * grace + _END_SECONDS
    ended: set[str] = set()
    while time.monotonic() < deadline:
        left = [name for name in lingers if not _is_over(jobs.read(name), name in ended)]
        trainers = [name for name in left if lingers[name] >= 0]
        for name in trainers or left:
            if name not in ended and time.monotonic() - began >= lingers[name]:
                jobs.end(name, by_deadline)
                ended.add(name)
        if not left:
            return
        time.sleep(_END_POLL_SECONDS)


def _is_over(job: JobObject, ended: bool) -> bool:
    status = job.get("status", {})
    if status.get("active") or status.get("terminating"):
        return False
    return ended or _has_condition(job, "Complete", "Failed")


def _has_condition(job: JobObject, *kinds: str) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] in kinds and each["status"] == "True" for each in conditions)


def _get_message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)


def main() -> int:
    """Run with the arguments suspend|deadline GRACE_SECONDS JOB=LINGER_SECONDS..."""
    _, method, grace, *entries = sys.argv
    pairs = [entry.split("=") for entry in entries]
    lingers = {name: float(seconds) for name, seconds in pairs}
    try:
        jobs = JobsClient(os.environ)
        progress = ProgressReport(jobs, os.environ)
        return control_jobs(jobs, progress, method == "deadline", float(grace), lingers)
    except urllib.error.HTTPError as error:
        print(f"the API refused a request of the job controller: {_get_message(error)}", flush=True)
        return JOB_FAILED


if __name__ == "__main__":
    sys.exit(main())
