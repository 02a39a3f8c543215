"""`phalanx manifest`: what runs TensorFlow Serving on an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli.options import ParsedType, add_options
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import CREDENTIALS, LABEL, MOUNT
from phalanx.launch.job import Resources, check_name, make_name
from phalanx.launch.kube.pods import PodOptions
from phalanx.launch.tf_serving import IMAGE, TensorFlowServing, render_compose, render_kubernetes
from phalanx.launch.values import parse_cpus, parse_gpus, parse_size


@click.command()
@click.argument("kind", metavar="KIND", type=click.Choice(["compose", "kubernetes"]))
@click.argument("model", metavar="MODEL")
@click.option("--name", help="The model's name.  [default: the directory's]")
@click.option("--image", default=IMAGE, show_default=True, help="Of TensorFlow Serving.")
@add_options(MOUNT, LABEL, CREDENTIALS)
@click.option("--cpus", type=ParsedType(parse_cpus), metavar="N", help="Of each server.")
@click.option("--memory", type=ParsedType(parse_size), metavar="SIZE", help="Of each server.")
@click.option("--gpus", type=ParsedType(parse_gpus), metavar="N", help="Of each server.")
@click.option("--replicas", type=click.IntRange(min=1), default=1, metavar="N", help="Servers.")
@click.option("--namespace", default="default", show_default=True, help="Of Kubernetes.")
def command(kind: str, model: str, **values: Any) -> None:
    """Print the KIND of file that runs TensorFlow Serving on MODEL: kubernetes or compose.

    MODEL is a directory of versions, as phalanx export writes it, under the name that the container
    has for it: gs://bucket/digits, or a path below a --mount.

    \b
    Example:
      phalanx manifest kubernetes gs://bucket/models/digits --replicas 2 --credentials key.json \\
          | kubectl apply -f -
      phalanx manifest compose /models/digits --mount $PWD/models:/models:ro > compose.yaml
    """
    name = values["name"] or make_name(model.rstrip("/"))
    check_name(name)
    needs = Resources(values["cpus"], values["memory"], values["gpus"] or 0)
    credentials = values["credentials"]
    container = Container(
        values["image"],
        mounts=values["mount"],
        labels=dict(values["label"]),
        credentials=credentials,
    )
    server = TensorFlowServing(name, model.rstrip("/"), container, needs, values["replicas"])
    if kind == "compose":
        click.echo(render_compose(server))
    else:
        key = Path(credentials).read_bytes() if credentials else None
        click.echo(render_kubernetes(server, PodOptions(values["namespace"], credentials=key)))
