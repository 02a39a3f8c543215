"""From an exported model to what runs TensorFlow Serving on it: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from phalanx.errors import JobError
from phalanx.launch.containers.compose_file import make_mounts, make_volumes, render
from phalanx.launch.containers.container import (
    CREDENTIALS_PATH,
    CREDENTIALS_VARIABLE,
    Container,
)
from phalanx.launch.job import Resources
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.kube.pods import (
    PodOptions,
    head,
    make_pod_spec,
    make_resources,
    make_secret,
    make_vital_probes,
)
from phalanx.launch.kube.pods import make_volumes as make_pod_volumes

IMAGE = "tensorflow/serving:2.20.0"
_GRPC, _REST = 8500, 8501


@dataclass(frozen=True)
class TensorFlowServing:
    """A model, as the container sees it, and how much of a server it gets.

    >>> server = TensorFlowServing("digits", "gs://bucket/models/digits", Container(IMAGE))
    >>> server.command()[-1]
    '--model_base_path=gs://bucket/models/digits'
    """

    name: str
    model: str
    container: Container
    needs: Resources = field(default_factory=Resources)
    replicas: int = 1

    def validate(self) -> None:
        """Raise a JobError if the container could not see the model."""
        if "://" in self.model:
            return
        path = PurePosixPath(self.model)
        if not path.is_absolute():
            raise JobError(
                f"{self.model!r} is no path of the container: write gs://bucket/digits, or "
                "/models/digits with --mount SOURCE:/models"
            )
        targets = [each.target for each in self.container.mounts]
        if not any(path.is_relative_to(target) for target in targets):
            raise JobError(
                f"nothing is mounted at {self.model}: add --mount SOURCE:{path.parent}:ro"
            )

    def command(self) -> list[str]:
        """How the server is started."""
        ports = [f"--port={_GRPC}", f"--rest_api_port={_REST}"]
        model = [f"--model_name={self.name}", f"--model_base_path={self.model}"]
        return ["tensorflow_model_server", *ports, *model]


def render_kubernetes(server: TensorFlowServing, place: PodOptions) -> str:
    """A Deployment and a Service, for `kubectl apply -f -`."""
    server.validate()
    return dump(_objects(server, place))


def _objects(server: TensorFlowServing, place: PodOptions) -> Iterator[Manifest]:
    own = {"phalanx.model": server.name}
    labels = {**server.container.labels, **own}
    name = server.name
    yield from make_secret(name, labels, place)
    yield {
        **head("apps/v1", "Deployment", name, labels, place),
        "spec": {
            "replicas": server.replicas,
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": labels}, "spec": _pod(server, place)},
        },
    }
    ports = [("grpc", _GRPC), ("http", _REST)]
    yield {
        **head("v1", "Service", name, labels, place),
        "spec": {
            "selector": own,
            "ports": [{"name": each, "port": port, "targetPort": each} for each, port in ports],
        },
    }
    if server.replicas > 1:
        yield {
            **head("policy/v1", "PodDisruptionBudget", name, labels, place),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": own}},
        }


def _pod(server: TensorFlowServing, place: PodOptions) -> dict[str, Any]:
    volumes, mounts = make_pod_volumes(server.name, server.container, place)
    key = [{"name": CREDENTIALS_VARIABLE, "value": CREDENTIALS_PATH}]
    ready = {"httpGet": {"path": f"/v1/models/{server.name}", "port": "http"}}
    main = {
        "name": "serving",
        "image": server.container.image,
        "command": server.command(),
        **({"env": key} if place.credentials is not None else {}),
        "ports": [
            {"name": "grpc", "containerPort": _GRPC},
            {"name": "http", "containerPort": _REST},
        ],
        "readinessProbe": {**ready, "periodSeconds": 5},
        # A large model takes minutes to load.
        **make_vital_probes({"tcpSocket": {"port": "grpc"}}),
        **make_resources(server.needs),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    return make_pod_spec(main, volumes, place)


def render_compose(server: TensorFlowServing) -> str:
    """A file for `docker compose`, with the server on this machine's ports."""
    server.validate()
    if server.replicas > 1:
        raise JobError("one machine's ports serve one server: leave out --replicas")
    container = server.container.with_key()
    environment = {"environment": {CREDENTIALS_VARIABLE: CREDENTIALS_PATH}}
    gpus = {"driver": "nvidia", "count": server.needs.gpus, "capabilities": ["gpu"]}
    reserve = {"resources": {"reservations": {"devices": [gpus]}}}
    service = {
        "image": container.image,
        "entrypoint": server.command(),
        **(environment if container.credentials else {}),
        "ports": [f"127.0.0.1:{port}:{port}" for port in (_GRPC, _REST)],
        "restart": "unless-stopped",
        **({"labels": dict(container.labels)} if container.labels else {}),
        **make_mounts(container.mounts),
        **({"cpus": server.needs.cpus} if server.needs.cpus else {}),
        **({"mem_limit": server.needs.memory} if server.needs.memory else {}),
        **({"deploy": reserve} if server.needs.gpus else {}),
    }
    file = {"services": {server.name: service}, **make_volumes(container.mounts)}
    return render(file).rstrip("\n")
