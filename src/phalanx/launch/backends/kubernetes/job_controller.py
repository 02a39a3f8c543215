"""The job controller: ends the Jobs of one job together, from a pod of its own.

The pod runs this text with `python -c`, so it uses the standard library only. Kubernetes ends the
pods of one Job together, but not those of several Jobs. When the deciding Job is complete, or any
Job has failed, the controller suspends the others, which ends their pods and keeps their records.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

JobObject = dict[str, Any]

# The pod is not restarted after this exit code.
JOB_FAILED = 3
_POLL_SECONDS = 5.0
_RESPONSE_SECONDS = 30.0
_OUTAGE_SECONDS = 600.0
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

    def suspend(self, name: str) -> None:
        self._request("PATCH", name, {"spec": {"suspend": True}})

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


def control_jobs(jobs: JobsClient, grace: float, names: Sequence[str]) -> int:
    """Wait until the first Job completes or any Job fails, then end the others."""
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
        time.sleep(_POLL_SECONDS)
    print(f"{reason}: ending the other Jobs", flush=True)
    for name in names:
        if not _has_condition(current[name], "Complete", "Failed"):
            jobs.suspend(name)
    deadline = time.monotonic() + grace + _END_SECONDS
    while any(_has_pods(jobs.read(name)) for name in names) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return code


def _has_condition(job: JobObject, *kinds: str) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] in kinds and each["status"] == "True" for each in conditions)


def _has_pods(job: JobObject) -> bool:
    status = job.get("status", {})
    return bool(status.get("active") or status.get("terminating"))


def _get_message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)


def main() -> int:
    """Run with the arguments GRACE_SECONDS JOB..."""
    try:
        return control_jobs(JobsClient(os.environ), float(sys.argv[1]), sys.argv[2:])
    except urllib.error.HTTPError as error:
        print(f"the API refused a request of the job controller: {_get_message(error)}", flush=True)
        return JOB_FAILED


if __name__ == "__main__":
    sys.exit(main())
