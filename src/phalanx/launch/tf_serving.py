"""TensorFlow Serving for an exported model, as Kubernetes manifests or a compose file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from phalanx.errors import JobError
from phalanx.launch.containers.compose_file import make_mounts, make_volumes, render
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Resources
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.kube.pods import (
    PodOptions,
    credentials_env,
    make_header,
    make_pod_spec,
    make_resources,
    make_secret,
    make_server_probes,
)
from phalanx.launch.kube.pods import make_volumes as make_pod_volumes

IMAGE = "tensorflow/serving:2.20.0"
_GRPC, _REST = 8500, 8501


@dataclass(frozen=True)
class TensorFlowServing:
    """A model server: the model's path inside the container, its resources and replicas.

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
        """Raise a JobError if the container cannot reach the model."""
        if "://" in self.model:
            return
        path = PurePosixPath(self.model)
        if not path.is_absolute():
            raise JobError(
                f"{self.model!r} is not a path of the container: write gs://bucket/digits, or "
                "/models/digits with --mount SOURCE:/models"
            )
        targets = [each.target for each in self.container.mounts]
        if not any(path.is_relative_to(target) for target in targets):
            raise JobError(
                f"nothing is mounted at {self.model}: add --mount SOURCE:{path.parent}:ro"
            )

    def command(self) -> list[str]:
        ports = [f"--port={_GRPC}", f"--rest_api_port={_REST}"]
        model = [f"--model_name={self.name}", f"--model_base_path={self.model}"]
        return ["tensorflow_model_server", *ports, *model]


def render_kubernetes(server: TensorFlowServing, options: PodOptions) -> str:
    """Render a Deployment and a Service, for `kubectl apply -f -`."""
    server.validate()
    return dump(_make_objects(server, options))


def _make_objects(server: TensorFlowServing, options: PodOptions) -> Iterator[Manifest]:
    selector = {"phalanx.model": server.name}
    labels = {**server.container.labels, **selector}
    name = server.name
    yield from make_secret(name, labels, options)
    yield {
        **make_header("apps/v1", "Deployment", name, labels, options),
        "spec": {
            "replicas": server.replicas,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": _make_pod(server, options)},
        },
    }
    ports = [("grpc", _GRPC), ("http", _REST)]
    yield {
        **make_header("v1", "Service", name, labels, options),
        "spec": {
            "selector": selector,
            "ports": [{"name": each, "port": port, "targetPort": each} for each, port in ports],
        },
    }
    if server.replicas > 1:
        yield {
            **make_header("policy/v1", "PodDisruptionBudget", name, labels, options),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector}},
        }


def _make_pod(server: TensorFlowServing, options: PodOptions) -> Manifest:
    volumes, mounts = make_pod_volumes(server.name, server.container, options)
    ready = {"httpGet": {"path": f"/v1/models/{server.name}", "port": "http"}}
    main = {
        "name": "serving",
        "image": server.container.image,
        "command": server.command(),
        **credentials_env(options),
        "ports": [
            {"name": "grpc", "containerPort": _GRPC},
            {"name": "http", "containerPort": _REST},
        ],
        "readinessProbe": {**ready, "periodSeconds": 5},
        # A large model takes minutes to load.
        **make_server_probes({"tcpSocket": {"port": "grpc"}}),
        **make_resources(server.needs),
        **mounts,
    }
    return make_pod_spec(main, volumes, options)


def render_compose(server: TensorFlowServing) -> str:
    """Render a file for `docker compose`, with the server on this machine's ports."""
    server.validate()
    if server.replicas > 1:
        raise JobError("compose publishes the ports of one server only: leave out --replicas")
    container = server.container.with_credentials_mount()
    gpus = {"driver": "nvidia", "count": server.needs.gpus, "capabilities": ["gpu"]}
    reserve = {"resources": {"reservations": {"devices": [gpus]}}}
    key = container.credentials_variables()
    service = {
        "image": container.image,
        "entrypoint": server.command(),
        **({"environment": key} if key else {}),
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
