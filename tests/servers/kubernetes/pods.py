"""The pods of the emulator: processes of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.servers.kubernetes.cluster import Kubernetes

Manifest = dict[str, Any]
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def expand(text: str, variables: dict[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: `$$` is `$`, and unknown names stay."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


class Pod:
    """One process, from a pod template with a single container."""

    def __init__(
        self,
        cluster: Kubernetes,
        owner: tuple[str, str],
        hostname: str,
        template: Manifest,
        labels: dict[str, str],
        given: dict[str, str],
    ) -> None:
        self.cluster = cluster
        self.owner = owner
        self.hostname = hostname
        self.index = given.get("JOB_COMPLETION_INDEX", "0")
        self.name = f"{hostname}-{uuid.uuid4().hex[:5]}"
        self.created = datetime.now(UTC).isoformat()
        self.labels = {**template["metadata"]["labels"], **labels}
        self.annotations = template["metadata"].get("annotations", {})
        self.log = cluster.directory / f"{self.name}.log"
        self.terminated_at: float | None = None
        self.disrupted = False
        # Whether the Job controller has counted its failure or its end.
        self.counted = False
        self.restarts = 0
        self.grace = template["spec"].get("terminationGracePeriodSeconds", 30)
        [self.container] = template["spec"]["containers"]
        self.account = template["spec"].get("serviceAccountName")
        self.uid = str(uuid.uuid4())
        self.given = {"HOSTNAME": hostname, **cluster.address, **given}
        self.start()

    def start(self) -> None:
        """Start or restart the container."""
        variables: dict[str, str] = dict(self.given)
        for entry in self.container.get("env", []):
            if "valueFrom" in entry:
                variables[entry["name"]] = self.cluster.read_key(entry["valueFrom"]["secretKeyRef"])
                continue
            variables[entry["name"]] = expand(entry["value"], variables)
            if entry["value"] == ACCOUNT:
                variables[entry["name"]] = str(self.cluster.make_account(self.account))
        command = [expand(part, variables) for part in self.container["command"]]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.cluster.networks.enter(self.hostname, self.cluster.hosts()), *command],
                cwd=self.cluster.image,
                env={"PATH": path, "HOME": "/nonexistent", **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def uses(self, side: str) -> Manifest:
        """Return the requests or limits, for a quota; a pod that has ended uses nothing."""
        used: Manifest = self.container.get("resources", {}).get(side, {})
        return used if self.process.poll() is None else {}

    def evict(self) -> None:
        """Evict the pod, as the scheduler does for one of a higher priority."""
        self.disrupted = True
        self.terminate()

    def terminate(self) -> None:
        if self.terminated_at is None and self.process.poll() is None:
            self.terminated_at = time.monotonic()
            self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def phase(self) -> str:
        code = self.process.poll()
        return "Running" if code is None else "Failed" if code else "Succeeded"

    def is_leaving(self) -> bool:
        """Whether the pod was deleted and still runs."""
        return self.terminated_at is not None and self.process.poll() is None

    def exit_code(self) -> int | None:
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def condition(self) -> tuple[str, str]:
        """Return the type and the status of the pod's condition."""
        return ("DisruptionTarget", "True" if self.disrupted else "False")

    def manifest(self) -> Manifest:
        code = exit_code = self.exit_code()
        state = {"running": {}} if code is None else {"terminated": {"exitCode": exit_code}}
        status: Manifest = {"image": "", "imageID": "", "ready": True}
        status |= {"name": self.container["name"], "restartCount": self.restarts, "state": state}
        return {
            "metadata": {
                "name": self.name,
                "namespace": "default",
                "uid": self.uid,
                "labels": self.labels,
                "creationTimestamp": self.created,
                "annotations": {
                    **self.annotations,
                    "batch.kubernetes.io/job-completion-index": self.index,
                },
                **({"deletionTimestamp": self.created} if self.terminated_at else {}),
            },
            "spec": {
                "containers": [
                    {"name": self.container["name"], "ports": self.container.get("ports", [])}
                ]
            },
            "status": self.cluster.waiting
            or {
                "phase": self.phase(),
                "podIP": self.cluster.networks.find_address(self.hostname),
                **({"conditions": [DISRUPTED]} if self.disrupted else {}),
                "containerStatuses": [status],
            },
        }
