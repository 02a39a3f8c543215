"""`phalanx manifest`: print the manifests that serve a model with TensorFlow Serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli.options import CREDENTIALS, LABEL, MOUNT
from phalanx.cli.values import Parsed, parse_cpus, parse_gpus, parse_size
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Resources, check_name, make_name
from phalanx.launch.kube.pods import PodOptions
from phalanx.launch.tf_serving import IMAGE, TensorFlowServing, render_compose, render_kubernetes


@click.command()
@click.argument("kind", metavar="KIND", type=click.Choice(["compose", "kubernetes"]))
@click.argument("model", metavar="MODEL")
@click.option("--name", help="The name of the model.  [default: that of its directory]")
@click.option("--image", default=IMAGE, show_default=True, help="The image of TensorFlow Serving.")
@MOUNT
@LABEL
@CREDENTIALS
@click.option("--cpus", type=Parsed("cpus", parse_cpus), metavar="N", help="CPUs of each server.")
@click.option(
    "--memory", type=Parsed("size", parse_size), metavar="SIZE", help="Memory of each server."
)
@click.option("--gpus", type=Parsed("gpus", parse_gpus), metavar="N", help="GPUs of each server.")
@click.option(
    "--replicas", type=click.IntRange(min=1), default=1, metavar="N", help="Number of servers."
)
@click.option(
    "--namespace", default="default", show_default=True, help="The namespace in Kubernetes."
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
    credentials = values["credentials"]
    container = Container(
        values["image"],
        mounts=values["mounts"],
        labels=dict(values["labels"]),
        credentials=credentials,
    )
    server = TensorFlowServing(name, model.rstrip("/"), container, needs, values["replicas"])
    if kind == "compose":
        click.echo(render_compose(server))
    else:
        key = Path(credentials).read_bytes() if credentials else None
        click.echo(render_kubernetes(server, PodOptions(values["namespace"], credentials=key)))
