"""The state of the emulated cluster, and the loop that runs its controllers."""

from __future__ import annotations

import base64
import shutil
import signal
import threading
import time
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.launch.pod_security import templates
from tests.servers.kubernetes import admission, controllers, operators
from tests.servers.kubernetes.networks import Networks
from tests.servers.kubernetes.pods import Pod

Manifest = dict[str, Any]
Key = tuple[str, str]
Change = tuple[int, str, Manifest]


class Kubernetes:
    """The state of the cluster."""

    def __init__(self, directory: Path, image: Path, isolated: bool) -> None:
        self.directory = directory
        self.image = image
        self.networks = Networks(directory, isolated)
        self.objects: dict[Key, Manifest] = {}
        self.pods: list[Pod] = []
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        # The variables with which pods find the API.
        self.address: dict[str, str] = {}
        # With a quota no pod is created, and the controller reports it in an event.
        self.quota = ""
        # Whether admission refuses pods that violate the Pod Security Standard "restricted".
        self.restricted = False
        # The resources that an unprivileged user may not create.
        self.refused: set[str] = set()
        # The resources that the API does not know, because their definitions are not installed.
        self.unknown: set[str] = set()
        # Whether Kubeflow Trainer has its feature gate TrainJobStatus on.
        self.takes_progress = False
        self.status_server = ""
        # Whether the operators of Kubeflow run, and whether Kueue admits the jobs of its queues.
        self.operated = True
        self.admits = True
        # How many seconds the controller of Deployments takes to create pods.
        self.deployment_delay = 0.0
        # Why no pod starts, as the container status or the scheduler reports it.
        self.waiting: Manifest = {}
        self.version = ("1", "34")
        # How often clients have asked, as in requests["list pods"].
        self.requests: Counter[str] = Counter()
        # Why the pods of an object cannot be created, for its events.
        self.complaints: dict[Key, str] = {}
        # What a watch of the pods reports, and how the next watch is told that this is forgotten:
        # by the "status" of the answer, or by an "event" in it.
        self.changes: list[Change] = []
        self.expired = ""
        self._known: dict[str, Manifest] = {}

    def read_key(self, reference: Manifest) -> str:
        """Return the value of a key of a Secret."""
        secret = self.objects["Secret", reference["name"]]
        return base64.b64decode(secret["data"][reference["key"]]).decode()

    def make_account(self, name: str) -> Path:
        """Write the files that a pod of this service account has mounted."""
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(name)
        (folder / "namespace").write_text("default")
        shutil.copy(self.directory / "ca.crt", folder)
        return folder

    def make_trainjob_token(self, name: str) -> dict[str, str]:
        """Return the variables with which a pod of a TrainJob reports its progress."""
        folder = self.directory / f"{name}-tls-config"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(f"trainjob-{name}")
        shutil.copy(self.directory / "ca.crt", folder)
        path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/{name}/status"
        return {
            "KUBEFLOW_TRAINER_SERVER_URL": self.status_server + path,
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(folder / "ca.crt"),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token"),
        }

    def hosts(self) -> list[str]:
        """Return the DNS names of the pods of all tasks."""
        found = []
        for (kind, name), manifest in self.objects.items():
            spec = manifest.get("spec", {})
            if kind == "Job" and spec.get("completionMode") == "Indexed":
                service = spec["template"]["spec"]["subdomain"]
                found += [f"{name}-{index}.{service}" for index in range(spec["completions"])]
            elif kind == "TrainJob":
                found += [
                    f"{name}-{each['name']}-0-{number}.{name}"
                    for each in operators.replicated_jobs(self, name)
                    for number in range(each["template"]["spec"]["completions"])
                ]
            elif kind == "TFJob":
                found += [
                    f"{name}-{key.lower()}-{number}.default.svc"
                    for key, replica in spec["tfReplicaSpecs"].items()
                    for number in range(replica["replicas"])
                ]
        return found

    def create(self, key: Key, manifest: Manifest) -> None:
        """Store an object, with what the API server adds to it."""
        manifest["metadata"]["uid"] = str(uuid.uuid4())
        manifest["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat()
        self.objects[key] = manifest

    def delete(self, key: Key) -> None:
        """Delete an object, its pods, and the objects that it owns."""
        manifest = self.objects.pop(key)
        self.complaints.pop(key, None)
        for pod in self.pods:
            if pod.owner == key:
                pod.terminate()
        uid = manifest.get("metadata", {}).get("uid")
        for each, owned in list(self.objects.items()):
            owners = owned.get("metadata", {}).get("ownerReferences", [])
            if each in self.objects and uid in [owner["uid"] for owner in owners]:
                self.delete(each)

    def create_pod(
        self,
        owner: Key,
        hostname: str,
        template: Manifest,
        labels: dict[str, str],
        given: dict[str, str],
    ) -> None:
        """Create a pod, or report in an event why admission refuses it."""
        reason = admission.refusal(self, template)
        if reason:
            self.complaints[owner] = reason
        else:
            self.complaints.pop(owner, None)
            self.pods.append(Pod(self, owner, hostname, template, labels, given))

    def control(self) -> None:
        """Run the control loops of the controllers until the server stops."""
        while not self.stopping.is_set():
            with self.lock:
                for key, manifest in list(self.objects.items()):
                    self._control(key, manifest)
                for pod in self.pods:
                    late = pod.terminated_at and time.monotonic() > pod.terminated_at + pod.grace
                    if late:
                        pod.send(signal.SIGKILL)
                # A deleted pod is removed when it has ended, and so are the pods of deleted owners.
                self.pods = [
                    pod
                    for pod in self.pods
                    if pod.process.poll() is None
                    or (pod.owner in self.objects and not pod.terminated_at)
                ]
                self.note_changes()
            time.sleep(0.05)

    def _control(self, key: Key, manifest: Manifest) -> None:
        kind, _ = key
        if kind in ("Job", "TFJob", "TrainJob"):
            controllers.control_queue(self, manifest)
        if kind == "Job":
            controllers.control_job(self, manifest)
        elif kind == "TFJob" and self.operated:
            operators.control_tfjob(self, manifest)
        elif kind == "TrainJob" and self.operated:
            operators.control_trainjob(self, manifest)
        elif kind == "Deployment":
            # Deployments are not run, but their pods are admitted or refused.
            created = datetime.fromisoformat(manifest["metadata"]["creationTimestamp"])
            age = (datetime.now(UTC) - created).total_seconds()
            for template in templates(manifest) if age >= self.deployment_delay else []:
                reason = admission.refusal(self, template)
                if reason:
                    self.complaints[key] = reason
        self._expire(key, manifest)

    def _expire(self, key: Key, manifest: Manifest) -> None:
        """Delete a finished object when its time to live is over."""
        spec = manifest.get("spec", {})
        limit = spec.get("runPolicy", spec).get("ttlSecondsAfterFinished")
        status = manifest.get("status", {"conditions": []})
        if limit is None or not any(
            e["type"] in controllers.FINISHED for e in status["conditions"]
        ):
            return
        finished = status.setdefault("finished", time.monotonic())
        if key in self.objects and time.monotonic() - finished >= limit:
            self.delete(key)

    def note_changes(self) -> None:
        """Record what a watch of the pods would report."""
        now = {pod.name: pod.manifest() for pod in self.pods}
        for name in self._known.keys() - now.keys():
            self._change("DELETED", self._known[name])
        for name, manifest in now.items():
            if name not in self._known:
                self._change("ADDED", manifest)
            elif self._known[name] != manifest:
                self._change("MODIFIED", manifest)
        self._known = now

    def _change(self, kind: str, manifest: Manifest) -> None:
        version = len(self.changes) + 1
        metadata = {**manifest["metadata"], "resourceVersion": str(version)}
        self.changes.append((version, kind, {**manifest, "metadata": metadata}))

    def stop(self) -> None:
        self.stopping.set()
        for pod in self.pods:
            pod.send(signal.SIGKILL)
            pod.process.wait()
        self.networks.stop()
