"""The options of the backends whose tasks are pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli.options import (
    CONTAINER,
    CPUS,
    DATA_WORKERS,
    GPUS,
    GRACE,
    MEMORY,
    PATCH,
    START_WITHIN,
    Decorator,
    read_patches,
)
from phalanx.cli.values import NAMED_VALUE, Parsed
from phalanx.launch.kube.pods import PodOptions, Toleration

PODS: tuple[Decorator[Any], ...] = (
    DATA_WORKERS,
    *CONTAINER,
    CPUS,
    MEMORY,
    GPUS,
    START_WITHIN,
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
    PATCH,
    GRACE,
)


def make_place(values: dict[str, Any]) -> PodOptions:
    """Where the options say that the pods go."""
    credentials = values["credentials"]
    return PodOptions(
        namespace=values["namespace"],
        node_selector=dict(values["node_selector"]),
        tolerations=values["tolerations"],
        priority_class=values["priority_class"],
        service_account=values["service_account"],
        grace=values["grace"],
        protect=values["protect"],
        tensorboard=values["tensorboard"],
        credentials=Path(credentials).read_bytes() if credentials else None,
        patches=read_patches(values),
    )
