"""HTTP servers in a cluster, such as TensorBoard: a Deployment, a Service and a NetworkPolicy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from phalanx.launch.containers.container import (
    CREDENTIALS_PATH,
    CREDENTIALS_VARIABLE,
    Container,
)
from phalanx.launch.job import Job, Resources
from phalanx.launch.kube import pods
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PodOptions
from phalanx.launch.kube.policies import DNS, STORAGE
from phalanx.launch.kube.security import make_container_security
from phalanx.launch.task_commands import TENSORBOARD_PORT, tensorboard_command


@dataclass(frozen=True)
class Server:
    """What is particular about a server; `ports` are those of the Service and its own.

    With `remote`, the server reads its files from a storage service. `clients` are namespaces whose
    pods may connect, in addition to its own.
    """

    name: str
    part: str
    command: list[str]
    ports: Mapping[str, tuple[int, int]]
    path: str
    labels: Mapping[str, str]
    selector: Mapping[str, str]
    remote: bool
    needs: Resources
    replicas: int = 1
    clients: tuple[str, ...] = ()


def make_tensorboard(job: Job, container: Container, options: PodOptions) -> Iterator[Manifest]:
    """Make a TensorBoard that runs on after the job, until `phalanx cancel`.

    It gets neither the variables nor the key and the account of the tasks, and mounts read-only.
    """
    if not options.tensorboard:
        return
    command = tensorboard_command(job, container.python)
    own = replace(
        options,
        credentials=options.tensorboard_credentials,
        service_account=options.tensorboard_account,
    )
    server = Server(
        name=f"{job.name}-tensorboard",
        part="tensorboard",
        command=command,
        ports={"http": (80, TENSORBOARD_PORT)},
        path="/",
        labels=pods.job_labels(job, container, "tensorboard"),
        selector={pods.JOB: job.name, pods.PART: "tensorboard"},
        remote="://" in (job.model_dir or ""),
        needs=options.tensorboard_needs,
    )
    yield from make_server(server, container.for_tensorboard(job.model_dir), own)


def make_server(server: Server, container: Container, options: PodOptions) -> Iterator[Manifest]:
    """Make the objects of a server. Its root file system is read-only, except for /tmp."""
    yield from pods.make_secret(server.name, server.labels, options)
    volumes, mounts = pods.make_volumes(server.name, container, options, temporary=True)
    key = [{"name": CREDENTIALS_VARIABLE, "value": CREDENTIALS_PATH}]
    main = {
        "name": server.part,
        "image": container.image,
        "command": [pods.escape_variables(each) for each in server.command],
        **({"env": key} if options.credentials is not None else {}),
        "ports": [
            {"name": name, "containerPort": port} for name, (_, port) in server.ports.items()
        ],
        "readinessProbe": {"httpGet": {"path": server.path, "port": "http"}, "periodSeconds": 5},
        **pods.make_server_probes({"tcpSocket": {"port": next(iter(server.ports))}}),
        **pods.make_resources(server.needs),
        **make_container_security(read_only=True),
        **mounts,
    }
    yield {
        **pods.make_header("apps/v1", "Deployment", server.name, server.labels, options),
        "spec": {
            "replicas": server.replicas,
            "selector": {"matchLabels": dict(server.selector)},
            "template": {
                "metadata": {"labels": {**server.labels, **server.selector}},
                "spec": pods.make_pod_spec(main, volumes, options),
            },
        },
    }
    exposed = [
        {"name": name, "port": port, "targetPort": name} for name, (port, _) in server.ports.items()
    ]
    yield {
        **pods.make_header("v1", "Service", server.name, server.labels, options),
        "spec": {"selector": dict(server.selector), "ports": exposed},
    }
    yield _make_policy(server, options)


def _make_policy(server: Server, options: PodOptions) -> Manifest:
    """Let pods of the namespace connect to the ports, and the server to its files only."""
    clients: list[Manifest] = [{"podSelector": {}}]
    for namespace in server.clients:
        label = {"kubernetes.io/metadata.name": namespace}
        clients.append({"namespaceSelector": {"matchLabels": label}})
    ports = [{"port": port, "protocol": "TCP"} for _, port in server.ports.values()]
    egress = [{"ports": [*DNS, *STORAGE]}] if server.remote else []
    return {
        **pods.make_header(
            "networking.k8s.io/v1", "NetworkPolicy", server.name, server.labels, options
        ),
        "spec": {
            "podSelector": {"matchLabels": dict(server.selector)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": clients, "ports": ports}],
            "egress": egress,
        },
    }
