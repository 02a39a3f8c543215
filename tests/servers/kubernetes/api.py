"""The part of the Kubernetes API that the launchers use.

A client without a token may do everything. One with a token is the user or the service account of
that name, and may do what its Roles allow.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
from tests.launch.kubeflow_schemas import TRAINER_STATUS
from tests.servers.kubernetes import authorization
from tests.servers.kubernetes.cluster import Kubernetes

Manifest = dict[str, Any]
RESOURCES = {
    "deployments": "Deployment",
    "events": "Event",
    "jobs": "Job",
    "networkpolicies": "NetworkPolicy",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "podgroups": "PodGroup",
    "pods": "Pod",
    "rolebindings": "RoleBinding",
    "roles": "Role",
    "secrets": "Secret",
    "serviceaccounts": "ServiceAccount",
    "services": "Service",
    "tfjobs": "TFJob",
    "trainjobs": "TrainJob",
    "trainingruntimes": "TrainingRuntime",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request after the other on a connection."""

    protocol_version = "HTTP/1.1"
    cluster: Kubernetes

    def do_POST(self) -> None:
        manifest = self._read()
        if self.path.endswith("/status"):
            self._take_status(manifest)
            return
        if not self._accept("create"):
            return
        key = (RESOURCES[self.resource], manifest["metadata"]["name"])
        objects = self.cluster.objects
        with self.cluster.lock:
            namespace = manifest["metadata"]["namespace"]
            if namespace == "nowhere":
                self._refuse(404, f'namespaces "{namespace}" not found')
            elif namespace == "forbidden":
                self._forbid(f'User "me" cannot create resource "{self.resource}"')
            elif key in objects:
                self._refuse(409, f'{self.resource} "{key[1]}" already exists')
            elif self.user and (reason := authorization.escalation(objects, self.user, manifest)):
                self._forbid(reason)
            else:
                self.cluster.create(key, manifest)
                self._answer(201, manifest)

    def _take_status(self, sent: Manifest) -> None:
        """Take the progress of a TrainJob as Kubeflow Trainer's server of statuses does."""
        name = self.path.split("/")[-2]
        with self.cluster.lock:
            job = self.cluster.objects.get(("TrainJob", name))
            if job is None or self.headers.get("Authorization") != f"Bearer trainjob-{name}":
                self._refuse(403, "Forbidden")
                return
            self.resource, self.name = "trainjobs", name
            wrong = list(jsonschema.Draft202012Validator(TRAINER_STATUS).iter_errors(sent))
            if wrong:
                self._refuse(422, wrong[0].message)
                return
            job.setdefault("status", {"conditions": []})["trainerStatus"] = sent["trainerStatus"]
            self._answer(200, sent)

    def do_PATCH(self) -> None:
        change = self._read()
        if not self._accept("patch"):
            return
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        with self.cluster.lock:
            found = self._find()
            if found is not None:
                _merge(found, change)
                self._answer(200, found)

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/version/":
            major, minor = self.cluster.version
            self._answer(200, {"major": major, "minor": minor})
            return
        query = parse_qs(urlsplit(self.path).query)
        watched = query.get("watch", [""])[0].lower() == "true"
        if not self._accept("watch" if watched else "get"):
            return
        if self.part == "log":
            self._log(query.get("follow", [""])[0].lower() == "true")
        elif watched:
            with contextlib.suppress(OSError):  # The client may go away.
                self._watch(query)
        elif self.resource == "events":
            self._answer(200, {"items": self._events()})
        elif self.resource == "pods":
            with self.cluster.lock:
                self.cluster.note_changes()
                wanted = _parse_selector(query)
                items = [
                    manifest
                    for pod in self.cluster.pods
                    if wanted.items() <= (manifest := pod.manifest())["metadata"]["labels"].items()
                ]
                metadata = {"resourceVersion": str(len(self.cluster.changes))}
            about = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata}
            self._answer(200, {**about, "items": items})
        else:
            with self.cluster.lock:
                found = self._find()
                if found is not None:
                    self._answer(200, found)

    def do_DELETE(self) -> None:
        self._read()
        if not self._accept("delete"):
            return
        with self.cluster.lock:
            if self._find() is not None:
                self.cluster.delete((RESOURCES[self.resource], self.name))
                self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _read(self) -> Manifest:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content: Manifest = json.loads(body or b"{}")
        return content

    def _accept(self, verb: str) -> bool:
        """Take the target from `/apis/batch/v1/namespaces/NS/jobs/NAME/log`, and authorize it."""
        before, _, after = urlsplit(self.path).path.partition("/namespaces/")
        self.resource, self.name, self.part, *_ = [*after.split("/")[1:], "", "", ""]
        group = before.removeprefix("/apis/").partition("/")[0] if "/apis/" in before else ""
        self.user = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if verb == "get" and not self.name:
            verb = "list"
        with self.cluster.lock:
            asked = f"{self.resource}/{self.part}" if self.part else self.resource
            self.cluster.requests[f"{verb} {asked}"] += 1
            if self.resource in self.cluster.unknown:
                self._answer_text(404, "404 page not found\n")
                return False
            refused = verb == "create" and self.resource in self.cluster.refused
            about = (self.cluster.objects, self.user, verb, group, asked, self.name)
            if refused or (self.user and not authorization.is_allowed(*about)):
                who = self.user or "me"
                self._forbid(
                    f'User "{who}" cannot {verb} resource "{asked}" in API group "{group}"'
                )
                return False
        return True

    def _find(self) -> Manifest | None:
        found = self.cluster.objects.get((RESOURCES[self.resource], self.name))
        if found is None:
            self._refuse(404, f'{self.resource} "{self.name}" not found')
        return found

    def _events(self) -> list[Manifest]:
        with self.cluster.lock:
            items = list(self.cluster.complaints.items())
        return [_complaint(kind, name, reason) for (kind, name), reason in items]

    def _log(self, follow: bool) -> None:
        with self.cluster.lock:
            pod = next((each for each in self.cluster.pods if each.name == self.name), None)
        if pod is None:
            self._refuse(404, f'pods "{self.name}" not found')
            return
        self._begin("text/plain")
        place = 0
        while True:
            over = not follow or pod.process.poll() is not None
            text = pod.log.read_bytes()[place:]
            place += len(text)
            self._send(text)
            if over:
                self._end()
                return
            time.sleep(0.05)

    def _watch(self, query: dict[str, list[str]]) -> None:
        """Stream the changes since a version, as the API server does."""
        place, wanted = int(query["resourceVersion"][0]), _parse_selector(query)
        deadline = time.monotonic() + int(query["timeoutSeconds"][0])
        expired, self.cluster.expired = self.cluster.expired, ""
        if expired == "status":
            self._refuse(410, "too old resource version")
            return
        self._begin("application/json")
        if expired == "event":
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            self._send(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            self._end()
            return
        while time.monotonic() < deadline and not self.cluster.stopping.is_set():
            with self.cluster.lock:
                news = self.cluster.changes[place:]
                place = len(self.cluster.changes)
            for _, kind, manifest in news:
                if wanted.items() <= manifest["metadata"]["labels"].items():
                    line = json.dumps({"type": kind, "object": manifest})
                    self._send(line.encode() + b"\n")
            time.sleep(0.05)
        if query.get("allowWatchBookmarks", [""])[0].lower() == "true":
            about = {"kind": "Pod", "metadata": {"resourceVersion": str(place)}}
            self._send(json.dumps({"type": "BOOKMARK", "object": about}).encode() + b"\n")
        self._end()

    def _begin(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send(self, text: bytes) -> None:
        if text:
            self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
            self.wfile.flush()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, code: int, content: Manifest) -> None:
        self._answer_text(code, json.dumps(content), "application/json")

    def _answer_text(self, code: int, text: str, content_type: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _forbid(self, reason: str) -> None:
        name = f' "{self.name}"' if self.name else ""
        self._refuse(403, f"{self.resource}{name} is forbidden: {reason}")

    def _refuse(self, code: int, message: str) -> None:
        self._answer(code, {"kind": "Status", "apiVersion": "v1", "code": code, "message": message})

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


def _parse_selector(query: dict[str, list[str]]) -> dict[str, str]:
    return dict(each.split("=") for each in query["labelSelector"][0].split(","))


def _merge(found: Manifest, change: Manifest) -> None:
    """Apply a merge patch without nulls."""
    for name, value in change.items():
        if isinstance(value, dict):
            _merge(found.setdefault(name, {}), value)
        else:
            found[name] = value


def _complaint(kind: str, name: str, reason: str) -> Manifest:
    message = f'Error creating: pods "{name}-0" is forbidden: {reason}'
    # The pods of a Deployment are created by a ReplicaSet.
    owner = f"{name}-5d4f89" if kind == "Deployment" else name
    about = {"involvedObject": {"name": owner}, "reason": "FailedCreate"}
    return {**about, "message": message, "lastTimestamp": "1"}
