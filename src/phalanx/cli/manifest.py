"""`phalanx manifest`: print the manifests that serve a model with TensorFlow Serving."""

from pathlib import Path
from typing import Any

import click

from phalanx.cli.options import CheckedCommand, ParsedType, add_options
from phalanx.cli.printing import echo
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import CREDENTIALS, LABEL, MOUNT
from phalanx.launch.job import Resources, check_name, make_name
from phalanx.launch.kube.options import PodOptions
from phalanx.launch.tf_serving import (
    IMAGE,
    USER,
    TensorFlowServing,
    render_compose,
    render_kubernetes,
)
from phalanx.launch.values import parse_cpus, parse_gpus, parse_size


@click.command(cls=CheckedCommand)
@click.argument("kind", metavar="KIND", type=click.Choice(["compose", "kubernetes"]))
@click.argument("model", metavar="MODEL")
@click.option("--name", help="The name of the model.  [default: that of its directory]")
@click.option("--image", default=IMAGE, show_default=True, help="The image of TensorFlow Serving.")
@add_options(MOUNT, LABEL, CREDENTIALS)
@click.option("--cpus", type=ParsedType(parse_cpus), metavar="N", help="CPUs of each server.")
@click.option(
    "--memory", type=ParsedType(parse_size), metavar="SIZE", help="Memory of each server."
)
@click.option("--gpus", type=ParsedType(parse_gpus), metavar="N", help="GPUs of each server.")
@click.option(
    "--replicas", type=click.IntRange(min=1), default=1, metavar="N", help="Number of servers."
)
@click.option(
    "--namespace", default="default", show_default=True, help="The namespace in Kubernetes."
)
@click.option(
    "--allow-namespace",
    "clients",
    multiple=True,
    metavar="NAME",
    help="Kubernetes: let the pods of this namespace connect, too. Can be repeated.",
)
@click.option(
    "--run-as-user",
    type=click.IntRange(min=1),
    default=USER,
    show_default=True,
    metavar="UID",
    help="The user that the server runs as.",
)
def command(kind: str, model: str, **values: Any) -> None:
    """Print a manifest that serves MODEL with TensorFlow Serving; KIND is kubernetes or compose.

    MODEL is a directory of versions, as `phalanx export` writes it, by its path in the container:
    gs://bucket/digits, or a path below a --mount.

    \b
    Example:
      phalanx manifest kubernetes gs://bucket/models/digits --replicas 2 --credentials key.json \\
          | kubectl apply -f -
      phalanx manifest compose /models/digits --mount $PWD/models:/models:ro > compose.yaml
    """
    name = values["name"] or make_name(model.rstrip("/"))
    check_name(name)
    needs = Resources(values["cpus"], values["memory"], values["gpus"] or 0)
    labels, credentials = dict(values["label"]), values["credentials"]
    container = Container(
        values["image"],
        mounts=values["mount"],
        labels=labels,
        credentials=credentials,
        user=values["run_as_user"],
    )
    replicas, clients = values["replicas"], values["clients"]
    server = TensorFlowServing(name, model.rstrip("/"), container, needs, replicas, clients)
    if kind == "compose":
        echo(render_compose(server))
    else:
        key = Path(credentials).read_bytes() if credentials else None
        options = PodOptions(
            values["namespace"], credentials=key, run_as_user=values["run_as_user"]
        )
        echo(render_kubernetes(server, options))
