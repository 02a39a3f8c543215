"""A small Kubernetes: an API server that stores objects, and a controller that runs Jobs.

The pods of a Job are processes of this machine. The controller follows the rules of the real ones
for indices, new pods after failures up to a limit, suspension and deletion. A pod with a service
account may do what its Role allows. With `isolated`, the pod of each task has its own network and
DNS name, so that all pods can use the same port.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.launch.pod_security import templates, violations

Manifest = dict[str, Any]
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
clusters:
- name: here
  cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: {certificate}}}
users: [{{name: me, user: {{}}}}]
"""
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
RESOURCES = {
    "deployments": "Deployment",
    "events": "Event",
    "jobs": "Job",
    "networkpolicies": "NetworkPolicy",
    "poddisruptionbudgets": "PodDisruptionBudget",
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
        self.created = f"{time.time():.6f}"
        self.labels = {**template["metadata"]["labels"], **labels}
        self.log = cluster.directory / f"{self.name}.log"
        self.terminated_at: float | None = None
        self.disrupted = False
        self.restarts = 0
        self.grace = template["spec"].get("terminationGracePeriodSeconds", 30)
        [self.container] = template["spec"]["containers"]
        self.account = template["spec"].get("serviceAccountName")
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
                [*self.cluster.enter(self.hostname), *command],
                cwd=self.cluster.image,
                env={"PATH": path, "HOME": "/nonexistent", **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

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

    def manifest(self) -> Manifest:
        code = self.process.poll()
        exit_code = code if code is None or code >= 0 else 128 - code
        state = {"running": {}} if code is None else {"terminated": {"exitCode": exit_code}}
        status: Manifest = {"name": "task", "image": "", "imageID": "", "ready": True}
        status["restartCount"] = self.restarts
        return {
            "metadata": {
                "name": self.name,
                "labels": self.labels,
                "creationTimestamp": self.created,
                "annotations": {"batch.kubernetes.io/job-completion-index": self.index},
                **({"deletionTimestamp": self.created} if self.terminated_at else {}),
            },
            "status": self.cluster.waiting
            or {
                "phase": self.phase(),
                "containerStatuses": [{**status, "restartCount": self.restarts, "state": state}],
            },
        }


class Kubernetes:
    """The state of the cluster."""

    def __init__(self, directory: Path, image: Path, isolated: bool) -> None:
        self.directory = directory
        self.image = image
        self.isolated = isolated
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.pods: list[Pod] = []
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.run_id = uuid.uuid4().hex[:6]
        self.networks: set[str] = set()
        # The variables with which pods find the API.
        self.address: dict[str, str] = {}
        # With a quota no pod is created, and the controller reports it in an event.
        self.quota = ""
        # Whether admission refuses pods that violate the Pod Security Standard "restricted".
        self.restricted = False
        # The kinds that an unprivileged user may not create.
        self.refused: set[str] = set()
        # Why no pod starts, as the container status or the scheduler reports it.
        self.waiting: Manifest = {}

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

    def enter(self, hostname: str) -> list[str]:
        """Return the command that puts the process of a pod into its own network."""
        names = self._names() if self.isolated else []
        numbers = {name.partition(".")[0]: number for number, name in enumerate(names, 1)}
        if hostname not in numbers:
            return []
        name = f"p{self.run_id}{numbers[hostname]}"
        if name not in self.networks:
            self._make_network(name, f"10.88.0.{numbers[hostname]}", names)
        return ["ip", "netns", "exec", name]

    def _make_network(self, name: str, address: str, names: list[str]) -> None:
        self.networks.add(name)
        bridge = f"br{self.run_id}"
        if len(self.networks) == 1:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("link", "set", bridge, "up")
            self._let_through("--insert")
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", bridge, "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        # `ip netns exec` mounts this file as /etc/hosts: the DNS names of a headless Service.
        hosts = Path(f"/etc/netns/{name}/hosts")
        hosts.parent.mkdir(parents=True)
        hosts.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"10.88.0.{number} {each}\n" for number, each in enumerate(names, 1))
        )

    def _names(self) -> list[str]:
        """Return the DNS names of the pods."""
        found = []
        for (kind, name), manifest in self.objects.items():
            spec = manifest.get("spec", {})
            if kind == "Job" and spec.get("completionMode") == "Indexed":
                service = spec["template"]["spec"]["subdomain"]
                found += [f"{name}-{index}.{service}" for index in range(spec["completions"])]
            elif kind == "TrainJob":
                found += [
                    f"{name}-{each['name']}-0-{number}.{name}"
                    for each in self._replicated_jobs(name)
                    for number in range(each["template"]["spec"]["completions"])
                ]
            elif kind == "TFJob":
                found += [
                    f"{name}-{key.lower()}-{number}.default.svc"
                    for key, replica in spec["tfReplicaSpecs"].items()
                    for number in range(replica["replicas"])
                ]
        return found

    def _let_through(self, action: str) -> None:
        """Allow traffic through our bridges, which a Docker engine on this machine forbids."""
        if shutil.which("iptables"):
            bridge = f"br{self.run_id}"
            rule = ["FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"]
            subprocess.run(["iptables", action, *rule], check=False, timeout=10)

    def control(self) -> None:
        """Run the control loops of the controllers until the server stops."""
        while not self.stopping.is_set():
            with self.lock:
                for (kind, _), manifest in list(self.objects.items()):
                    if self.refusal(manifest):
                        continue
                    if kind == "Job":
                        self._control_job(manifest)
                    elif kind == "TFJob":
                        self._control_tfjob(manifest)
                    elif kind == "TrainJob":
                        self._control_trainjob(manifest)
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
            time.sleep(0.05)

    def refusal(self, manifest: Manifest) -> str:
        """Return why admission refuses the pods of an object, or an empty text."""
        found = list(templates(manifest))
        if manifest.get("kind") == "TrainJob":
            runtime = manifest["spec"]["runtimeRef"]["name"]
            found = list(templates(self.objects["TrainingRuntime", runtime]))
        if self.quota and found:
            return self.quota
        broken = [each for template in found for each in violations(template["spec"])]
        if self.restricted and broken:
            return f'violates PodSecurity "restricted:latest": {", ".join(broken)}'
        return ""

    def _control_job(self, job: Manifest) -> None:
        spec, status = job["spec"], job.setdefault("status", {"conditions": []})
        if any(each["type"] in ("Complete", "Failed") for each in status["conditions"]):
            return
        name = job["metadata"]["name"]
        mine = [pod for pod in self.pods if pod.owner == ("Job", name)]
        running = [pod for pod in mine if pod.phase() == "Running"]
        status["terminating"] = sum(pod.terminated_at is not None for pod in running)
        status["active"] = len(running) - status["terminating"]
        ending = status.get("ending")
        if ending or spec.get("suspend"):
            for pod in running:
                pod.terminate()
            if ending and not running:
                status["conditions"].append(ending)
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
                self.pods.append(Pod(self, owner, hostname, spec["template"], labels, given))
            elif failed:
                status.update({"failedIndexes": index} if indexed else {})
                status["ending"] = _condition("Failed", "FailedIndexes", "Job has failed indexes")
                return
            done.append(bool(pods) and pods[-1].phase() == "Succeeded")
        if all(done):
            status["ending"] = _condition("Complete", "CompletionsReached", "")

    def _control_tfjob(self, job: Manifest) -> None:
        """Reconcile a TFJob as the training operator does: set TF_CONFIG, and clean up."""
        spec, status = job["spec"], job.setdefault("status", {"conditions": []})
        if any(each["type"] in ("Succeeded", "Failed") for each in status["conditions"]):
            return
        name, prefix = job["metadata"]["name"], "training.kubeflow.org"
        mine = [pod for pod in self.pods if pod.owner == ("TFJob", name)]
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
                self.pods.append(Pod(self, ("TFJob", name), hostname, template, labels, given))
            return
        ending = None
        for pod in mine:
            kind = pod.labels[f"{prefix}/replica-type"]
            replica = next(
                each for key, each in spec["tfReplicaSpecs"].items() if key.lower() == kind
            )
            if pod.phase() != "Failed" or pod.disrupted:
                continue
            spent = sum(each.restarts for each in mine)
            if (
                replica["restartPolicy"] == "OnFailure"
                and spent < spec["runPolicy"]["backoffLimit"]
            ):
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

    def _replicated_jobs(self, name: str) -> list[Manifest]:
        """Return the Jobs of the runtime that the TrainJob refers to, with its number of nodes."""
        spec = self.objects["TrainJob", name]["spec"]
        reference = spec["runtimeRef"]
        runtime = self.objects[reference["kind"], reference["name"]]["spec"]
        jobs: list[Manifest] = runtime["template"]["spec"]["replicatedJobs"]
        for each in jobs:
            labels = each["template"].get("metadata", {}).get("labels", {})
            if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer":
                number = spec["trainer"]["numNodes"]
                each["template"]["spec"].update(completions=number, parallelism=number)
        return jobs

    def _control_trainjob(self, job: Manifest) -> None:
        """Reconcile a TrainJob as Trainer and JobSet do: an Indexed Job for each role."""
        status = job.setdefault("status", {"conditions": []})
        if any(each["type"] in ("Complete", "Failed") for each in status["conditions"]):
            return
        name, prefix = job["metadata"]["name"], "jobset.sigs.k8s.io"
        mine = [pod for pod in self.pods if pod.owner == ("TrainJob", name)]
        ending = status.get("ending")
        if ending:
            for pod in mine:
                pod.terminate()
            if all(pod.process.poll() is not None for pod in mine):
                status["conditions"].append(ending)
            return
        runtime = self.objects["TrainingRuntime", job["spec"]["runtimeRef"]["name"]]["spec"]
        deciding = runtime["template"]["spec"]["successPolicy"]["targetReplicatedJobs"]
        done = []
        for each in self._replicated_jobs(name):
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
                    self.pods.append(Pod(self, owner, hostname, spec["template"], labels, given))
                elif failed:
                    message = f"jobset failed: job {name}-{each['name']}-0 failed"
                    status["ending"] = _condition("Failed", "FailedJobs", message)
                    return
                if each["name"] in deciding:
                    done.append(bool(pods) and pods[-1].phase() == "Succeeded")
        if all(done):
            status["ending"] = _condition("Complete", "AllJobsCompleted", "")

    def stop(self) -> None:
        self.stopping.set()
        for pod in self.pods:
            pod.send(signal.SIGKILL)
            pod.process.wait()
        for name in self.networks:
            _ip("netns", "delete", name)
            (Path("/etc/netns") / name / "hosts").unlink()
            (Path("/etc/netns") / name).rmdir()
        if self.networks:
            self._let_through("--delete")
            _ip("link", "delete", f"br{self.run_id}")


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


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10)


class Handler(http.server.BaseHTTPRequestHandler):
    """The part of the API that the launchers use."""

    cluster: Kubernetes

    def do_POST(self) -> None:
        manifest = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        resource, _, _ = self._target()
        key = (RESOURCES[resource], manifest["metadata"]["name"])
        with self.cluster.lock:
            if manifest["metadata"]["namespace"] == "forbidden" or resource in self.cluster.refused:
                self._refuse(403, f'{resource} is forbidden: User "me" cannot create {resource}')
            elif key in self.cluster.objects:
                self._refuse(409, f'{resource} "{key[1]}" already exists')
            else:
                self.cluster.objects[key] = manifest
                self._answer(201, manifest)

    def do_PATCH(self) -> None:
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        resource, name, _ = self._target()
        with self.cluster.lock:
            if self._may("patch", resource, name):
                self.cluster.objects[RESOURCES[resource], name]["spec"].update(change["spec"])
                self._answer(200, self.cluster.objects[RESOURCES[resource], name])

    def do_GET(self) -> None:
        resource, name, part = self._target()
        if not self._may("get", resource, name):
            return
        if part == "log":
            self._log(name)
            return
        with self.cluster.lock:
            if resource == "events":
                items = [
                    self._complaint(kind, name, reason)
                    for (kind, name), manifest in self.cluster.objects.items()
                    if (reason := self.cluster.refusal(manifest))
                ]
                self._answer(200, {"items": items})
            elif resource == "pods":
                query = parse_qs(urlsplit(self.path).query)["labelSelector"][0]
                wanted = dict(each.split("=") for each in query.split(","))
                found = [pod for pod in self.cluster.pods if wanted.items() <= pod.labels.items()]
                items = [pod.manifest() for pod in found]
                self._answer(200, {"kind": "PodList", "apiVersion": "v1", "items": items})
            elif (RESOURCES[resource], name) in self.cluster.objects:
                self._answer(200, self.cluster.objects[RESOURCES[resource], name])
            else:
                self._refuse(404, f'{resource} "{name}" not found')

    def do_DELETE(self) -> None:
        resource, name, _ = self._target()
        with self.cluster.lock:
            if self.cluster.objects.pop((RESOURCES[resource], name), None) is None:
                self._refuse(404, f'{resource} "{name}" not found')
                return
            for pod in self.cluster.pods:
                if pod.owner == (RESOURCES[resource], name):
                    pod.terminate()
            self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _may(self, verb: str, resource: str, name: str) -> bool:
        """Whether a service account may do this; a user without a token may do everything."""
        account = self.headers.get("Authorization", "").removeprefix("Bearer ")
        objects = self.cluster.objects
        rules = [
            rule
            for (kind, _), binding in objects.items()
            if kind == "RoleBinding" and account in [each["name"] for each in binding["subjects"]]
            for rule in objects["Role", binding["roleRef"]["name"]]["rules"]
        ]
        allowed = not account or any(
            verb in rule["verbs"]
            and resource in rule["resources"]
            and name in rule["resourceNames"]
            for rule in rules
        )
        if not allowed:
            self._refuse(403, f'{resource} "{name}" is forbidden: "{account}" cannot {verb} it')
        return allowed

    def _complaint(self, kind: str, name: str, reason: str) -> Manifest:
        message = f'Error creating: pods "{name}-0" is forbidden: {reason}'
        # The pods of a Deployment are created by a ReplicaSet.
        owner = f"{name}-5d4f89" if kind == "Deployment" else name
        about = {"involvedObject": {"name": owner}, "reason": "FailedCreate"}
        return {**about, "message": message, "lastTimestamp": "1"}

    def _target(self) -> tuple[str, str, str]:
        """Split `/apis/batch/v1/namespaces/NS/jobs/NAME` into jobs, NAME and no subresource."""
        after = urlsplit(self.path).path.partition("/namespaces/")[2].split("/")[1:]
        resource, name, part, *_ = [*after, "", "", ""]
        return resource, name, part

    def _log(self, name: str) -> None:
        follow = "follow=" in self.path.replace("False", "").lower() and "true" in self.path.lower()
        pod = next(pod for pod in self.cluster.pods if pod.name == name)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        place = 0
        while True:
            over = not follow or pod.process.poll() is not None
            text = pod.log.read_bytes()[place:]
            place += len(text)
            self.wfile.write(text)
            self.wfile.flush()
            if over:
                return
            time.sleep(0.05)

    def _answer(self, code: int, content: Manifest) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: int, message: str) -> None:
        self._answer(code, {"kind": "Status", "apiVersion": "v1", "code": code, "message": message})

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


def _make_certificate(certificate: Path, key: Path) -> None:
    """Make a self-signed certificate for this machine."""
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-days", "1", *new, *names, *files]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextlib.contextmanager
def running(
    directory: Path, image: Path, isolated: bool = False
) -> Iterator[tuple[Kubernetes, dict[str, str]]]:
    """Start the server; yield the cluster, and the variables that its clients need."""
    cluster = Kubernetes(directory, image, isolated)
    handler = type("BoundHandler", (Handler,), {"cluster": cluster})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    port = server.server_address[1]
    cluster.address = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
    }
    certificate, key = directory / "ca.crt", directory / "key.pem"
    _make_certificate(certificate, key)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate, key)
    server.socket = secured.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    threads = [
        threading.Thread(target=server.serve_forever),
        threading.Thread(target=cluster.control),
    ]
    for thread in threads:
        thread.start()
    config = directory / "kubeconfig"
    config.write_text(KUBECONFIG.format(port=port, certificate=certificate))
    try:
        yield cluster, {"KUBECONFIG": str(config)}
    finally:
        server.shutdown()
        cluster.stop()
        for thread in threads:
            thread.join(10)
        server.server_close()
