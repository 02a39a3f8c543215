"""The options of the backends whose tasks are pods."""

from dataclasses import replace
from pathlib import Path

from phalanx.launch.containers.options import CONTAINER, PATCH, read_patches
from phalanx.launch.kube.pods import PodOptions, Toleration
from phalanx.launch.options import GRACE, START_WITHIN, TENSORBOARD, Option, OptionValues
from phalanx.launch.values import parse_pair

PODS = (
    *CONTAINER,
    START_WITHIN,
    Option("--namespace", "The namespace of all objects.", default=PodOptions.namespace),
    Option("--context", "The context of the kubeconfig  [default: the current one]"),
    Option(
        "--node-selector",
        "Use only nodes with this label. Can be repeated.",
        parse_pair,
        "NAME=VALUE",
        multiple=True,
    ),
    Option(
        "--toleration",
        "Use nodes with this taint, too. Can be repeated.",
        Toleration.parse,
        "KEY=VALUE:EFFECT",
        multiple=True,
    ),
    Option("--priority-class", "The PriorityClass of the pods.", metavar="NAME"),
    Option(
        "--service-account",
        "The service account of the pods  [default: none, and no token is mounted]",
        metavar="NAME",
    ),
    Option(
        "--protect",
        "Keep nodes from being drained while the job runs (PodDisruptionBudget).",
        is_flag=True,
    ),
    replace(TENSORBOARD, help="Serve TensorBoard until `phalanx cancel`."),
    PATCH,
    GRACE,
)


def make_pod_options(values: OptionValues) -> PodOptions:
    credentials = values["credentials"]
    return PodOptions(
        namespace=values["namespace"],
        node_selector=dict(values["node_selector"]),
        tolerations=values["toleration"],
        priority_class=values["priority_class"],
        service_account=values["service_account"],
        controller_account=values.get("controller_account"),
        grace=values["grace"],
        protect=values["protect"],
        tensorboard=values["tensorboard"],
        credentials=Path(credentials).read_bytes() if credentials else None,
        patches=read_patches(values),
    )
