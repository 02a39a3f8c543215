"""Ends the Jobs of one job together, from a pod of its own: `python -c` with this text, no Phalanx.

Kubernetes ends the pods of one Job together, but not those of several. When the Job that decides is
complete, or one has failed, the others are suspended: that ends their pods and keeps their records.
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

# After this exit code the pod is not started again.
JOB_FAILED = 3
_POLL_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_SILENCE_SECONDS = 600.0
_END_SECONDS = 60.0
_PASSING = (401, 408, 429, 500, 502, 503, 504)


class Jobs:
    """The Jobs of this pod's namespace, as its service account may see them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._account = Path(environ["PHALANX_ACCOUNT"])
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
        self._server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def read(self, name: str) -> dict[str, Any]:
        """A Job as it is now; one that somebody has removed counts as failed."""
        try:
            return self._ask("GET", name, None)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            return {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}

    def suspend(self, name: str) -> None:
        """End the pods of a Job."""
        self._ask("PATCH", name, {"spec": {"suspend": True}})

    def _ask(self, method: str, name: str, change: object) -> dict[str, Any]:
        """The API's answer; a server that is away for a while is asked again."""
        deadline = time.monotonic() + _SILENCE_SECONDS
        while True:
            try:
                return self._ask_once(method, name, change)
            except urllib.error.HTTPError as error:
                if error.code not in _PASSING or time.monotonic() > deadline:
                    raise
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _ask_once(self, method: str, name: str, change: object) -> dict[str, Any]:
        # The token is changed from time to time.
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
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=trusted) as answer:
            content: dict[str, Any] = json.load(answer)
            return content


def conduct(jobs: Jobs, grace: float, names: Sequence[str]) -> int:
    """Wait until the job is over, the first of these Jobs decides, and end what is left of it."""
    while True:
        now = {name: jobs.read(name) for name in names}
        if _has(now[names[0]], "Complete", "SuccessCriteriaMet"):
            code, said = 0, f"{names[0]} is done"
            break
        failed = [name for name in names if _has(now[name], "Failed", "FailureTarget")]
        if failed:
            code, said = JOB_FAILED, f"{failed[0]} has failed, or is gone"
            break
        time.sleep(_POLL_SECONDS)
    print(f"{said}: ending the others", flush=True)
    for name in names:
        if not _has(now[name], "Complete", "Failed"):
            jobs.suspend(name)
    deadline = time.monotonic() + grace + _END_SECONDS
    while any(_has_pods(jobs.read(name)) for name in names) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return code


def _has(job: Mapping[str, Any], *kinds: str) -> bool:
    """Whether one of these conditions is met."""
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] in kinds and each["status"] == "True" for each in conditions)


def _has_pods(job: Mapping[str, Any]) -> bool:
    status = job.get("status", {})
    return bool(status.get("active") or status.get("terminating"))


def _message(error: urllib.error.HTTPError) -> str:
    """What the API says of it."""
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)


def main() -> int:
    """The grace in seconds and the Jobs' names are the arguments."""
    try:
        return conduct(Jobs(os.environ), float(sys.argv[1]), sys.argv[2:])
    except urllib.error.HTTPError as error:
        print(f"the conductor was refused: {_message(error)}", flush=True)
        return JOB_FAILED


if __name__ == "__main__":
    sys.exit(main())
