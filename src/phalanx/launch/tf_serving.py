"""TensorFlow Serving for an exported model, as Kubernetes manifests or a compose file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from phalanx.errors import JobError
from phalanx.launch.containers.compose_file import make_mounts, make_volumes, render
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.security import make_compose_settings
from phalanx.launch.job import Resources
from phalanx.launch.kube.manifest import Manifest, dump
from phalanx.launch.kube.options import PodOptions, check_names
from phalanx.launch.kube.pods import make_header, standard_labels
from phalanx.launch.kube.servers import Server, make_server

IMAGE = "tensorflow/serving:2.20.0"
MODEL = "phalanx/model"
# The image would run as root.
USER = 1000
_GRPC, _REST = 8500, 8501


@dataclass(frozen=True)
class TensorFlowServing:
    """A model server: the model's path inside the container, its resources and replicas.

    `clients` are namespaces whose pods may connect, in addition to its own.
    """

    name: str
    model: str
    container: Container
    needs: Resources = field(default_factory=Resources)
    replicas: int = 1
    clients: tuple[str, ...] = ()

    def validate(self) -> None:
        """Raise a JobError if the container cannot reach the model."""
        self.container.validate()
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
    check_names(server.container, options)
    return dump(_make_objects(server, options))


def _make_objects(serving: TensorFlowServing, options: PodOptions) -> Iterator[Manifest]:
    selector = {MODEL: serving.name}
    labels = {**standard_labels(serving.name, "serving"), **serving.container.labels, **selector}
    # The probes of a server allow for minutes to load a large model.
    server = Server(
        name=serving.name,
        part="serving",
        command=serving.command(),
        ports={"grpc": (_GRPC, _GRPC), "http": (_REST, _REST)},
        path=f"/v1/models/{serving.name}",
        labels=labels,
        selector=selector,
        remote="://" in serving.model,
        needs=serving.needs,
        replicas=serving.replicas,
        clients=serving.clients,
    )
    yield from make_server(server, serving.container, options)
    if serving.replicas > 1:
        yield {
            **make_header("policy/v1", "PodDisruptionBudget", serving.name, labels, options),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector}},
        }


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
        **make_compose_settings(container.user),
        "read_only": True,
        "tmpfs": ["/tmp"],
        **({"labels": dict(container.labels)} if container.labels else {}),
        **make_mounts(container.mounts),
        **({"cpus": server.needs.cpus} if server.needs.cpus else {}),
        **({"mem_limit": server.needs.memory} if server.needs.memory else {}),
        **({"deploy": reserve} if server.needs.gpus else {}),
    }
    file = {"services": {server.name: service}, **make_volumes(container.mounts)}
    return render(file).rstrip("\n")
