"""`phalanx launch kubernetes`: an Indexed Job, and no operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli.launch.command import LaunchCommand, launch
from phalanx.cli.launch.options import (
    CONTAINER,
    CPUS,
    GPUS,
    MEMORY,
    make_container,
    make_job,
    options,
)
from phalanx.cli.launch.values import NAMED_VALUE, Parsed
from phalanx.launch.kubernetes.launcher import KubernetesLauncher
from phalanx.launch.kubernetes.plan import Place, Toleration
from phalanx.launch.manifest import load


@click.command(name="kubernetes", cls=LaunchCommand)
@options(
    *CONTAINER,
    CPUS,
    MEMORY,
    GPUS,
    click.option("--namespace", default="default", show_default=True, help="Where it all goes."),
    click.option("--context", help="Of the kubeconfig  [default: the current one]"),
    click.option(
        "--node-selector",
        "node_selector",
        multiple=True,
        type=NAMED_VALUE,
        metavar="NAME=VALUE",
        help="Only nodes with this label. Can be repeated.",
    ),
    click.option(
        "--toleration",
        "tolerations",
        multiple=True,
        type=Parsed("toleration", Toleration.parse),
        metavar="KEY=VALUE:EFFECT",
        help="Nodes with this taint, too. Can be repeated.",
    ),
    click.option("--priority-class", metavar="NAME", help="The pods' PriorityClass."),
    click.option("--service-account", metavar="NAME", help="Run as this; default: as nobody."),
    click.option("--protect", is_flag=True, help="Let no node be drained under the job (a PDB)."),
    click.option("--tensorboard", is_flag=True, help="Serve TensorBoard until `cancel`."),
    click.option(
        "--patch",
        "patches",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        metavar="YAML",
        help="Change the objects by what is in this file. Can be repeated.",
    ),
    click.option(
        "--grace",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Between SIGTERM and SIGKILL, when a task is ended.",
    ),
)
def command(**values: Any) -> None:
    """Start the tasks of a job as the pods of one Indexed Job.

    PROGRAM is looked for in the image. Needs the extra phalanx[kubernetes] and Kubernetes 1.33 or
    newer; with --dry-run neither, and the output is for kubectl apply -f -.

    \b
    Example:
      phalanx launch kubernetes --image digits:1 --workers 4 --cpus 4 --memory 8G --gpus 1 \\
          --model-dir gs://bucket/digits --credentials key.json --tensorboard train.py
    """
    job = make_job(values)
    credentials = values["credentials"]
    place = Place(
        namespace=values["namespace"],
        node_selector=dict(values["node_selector"]),
        tolerations=values["tolerations"],
        priority_class=values["priority_class"],
        service_account=values["service_account"],
        grace=values["grace"],
        protect=values["protect"],
        tensorboard=values["tensorboard"],
        credentials=Path(credentials).read_bytes() if credentials else None,
        patches=tuple(patch for path in values["patches"] for patch in load(Path(path))),
    )
    launcher = KubernetesLauncher(make_container(values), place, values["context"])
    launch("kubernetes", launcher, job, values)
