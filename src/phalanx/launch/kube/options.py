"""The options of the backends whose tasks are pods, and what they say about the pods."""

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Self

from phalanx.errors import JobError
from phalanx.launch.containers.container import PORT, Container
from phalanx.launch.containers.options import (
    CONTAINER,
    MAX_ID,
    PATCH,
    RUN_AS_USER,
    TENSORBOARD_CREDENTIALS,
    read_patches,
)
from phalanx.launch.job import Resources
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.namespace import find_namespace
from phalanx.launch.options import (
    ENV_FROM_SECRET,
    GRACE,
    START_WITHIN,
    TENSORBOARD,
    Choice,
    IntegerRange,
    Option,
    OptionValues,
    hides_secrets,
)
from phalanx.launch.secrets import HIDDEN
from phalanx.launch.termination import GracePeriods
from phalanx.launch.values import parse_cpus, parse_duration, parse_label, parse_size

# What containers request unless the user says otherwise: quotas refuse pods without requests.
TASK_NEEDS = Resources(cpus=0.5, memory=1 << 30)
TENSORBOARD_NEEDS = Resources(cpus=0.5, memory=2 << 30)
CONTROLLER_NEEDS = Resources(cpus=0.1, memory=128 << 20)
# The label by which Kueue finds an object of a queue, and that of the part of a job.
QUEUE = "kueue.x-k8s.io/queue-name"
COMPONENT = "app.kubernetes.io/component"
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_LABEL_NAME = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_RULE = (
    "use at most 63 letters, digits, hyphens, dots and underscores, the first and the last a "
    "letter or digit; a prefix before a slash is a domain in lower case"
)


class Gang(Enum):
    """The schedulers that start all pods of a group together, or none."""

    KUBERNETES = "kubernetes"
    COSCHEDULING = "coscheduling"
    VOLCANO = "volcano"


@dataclass(frozen=True)
class Toleration:
    """A toleration, as `key=value:Effect` or `key:Effect`."""

    key: str
    value: str | None
    effect: str

    @classmethod
    def parse(cls, text: str) -> Self:
        pair, _, effect = text.rpartition(":")
        key, equals, value = pair.partition("=")
        if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise JobError(f"{text!r} is not a toleration: write key=value:NoSchedule")
        return cls(key, value if equals else None, effect)


@dataclass(frozen=True)
class Egress:
    """Where pods may connect to, as `443`, `10.0.0.0/8` or `10.0.0.0/8:443`; `none` is nothing."""

    cidr: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        if text == "none":
            return cls()
        before, colon, last = text.rpartition(":")
        # The last group of an IPv6 network has its own colon, and a slash.
        with_port = last.isdecimal() and ("/" in before or not colon)
        network, port = (before, last) if with_port else (text, "")
        try:
            cidr = str(ipaddress.ip_network(network)) if network else None
            if not text or not 0 < int(port or 1) < 65536:
                raise ValueError
        except ValueError:
            raise JobError(
                f"{text!r} is no target for --egress: write 443, 10.0.0.0/8, 10.0.0.0/8:443 or none"
            ) from None
        return cls(cidr, int(port) if port else None)


@dataclass(frozen=True)
class PodOptions:
    """Where in the cluster the pods of a job run, and with which rights and additions.

    With None for `egress`, the pods may connect to everything that the namespace allows. `ttl` are
    the seconds that the objects are kept after the end of the job. With `metrics_port`, the chief
    serves metrics to the pods of its own namespace and of `metrics_from`.
    """

    namespace: str = "default"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str | None = None
    scheduler: str | None = None
    queue: str | None = None
    gang: Gang | None = None
    service_account: str | None = None
    controller_account: str | None = None
    controller_needs: Resources = CONTROLLER_NEEDS
    image_pull_secrets: tuple[str, ...] = ()
    egress: tuple[Egress, ...] | None = None
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    ttl: float = 86400.0
    protect: bool = False
    tensorboard: bool = False
    tensorboard_credentials: bytes | None = None
    tensorboard_account: str | None = None
    tensorboard_needs: Resources = TENSORBOARD_NEEDS
    credentials: bytes | None = None
    metrics_port: int | None = None
    metrics_from: tuple[str, ...] = ()
    run_as_user: int | None = None
    fs_group: int | None = None
    patches: tuple[Manifest, ...] = ()


def check_names(container: Container, options: PodOptions) -> None:
    """Raise a JobError for names that the API refuses, or that would be part of another path."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", options.namespace):
        raise JobError(f"{options.namespace!r} cannot be a namespace: use at most 63 lower-case "
                       "letters, digits and hyphens (--namespace)")  # fmt: skip
    for flag, name in (("--queue", options.queue), ("--scheduler", options.scheduler)):
        if name is not None and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", name):
            raise JobError(f"{flag} {name!r} is no name in Kubernetes: use at most 63 lower-case "
                           "letters, digits, dots and hyphens")  # fmt: skip
    for flag, name in _named_objects(options):
        if name is not None and not OBJECT_NAME.fullmatch(name):
            raise JobError(f"{flag} {name!r} is no name in Kubernetes: use at most 253 lower-case "
                           "letters, digits, dots and hyphens")  # fmt: skip
    for each in options.tolerations:
        if not _LABEL_NAME.fullmatch(each.key) or not _LABEL_VALUE.fullmatch(each.value or ""):
            taint = each.key if each.value is None else f"{each.key}={each.value}"
            raise JobError(f"--toleration {taint!r} is no taint in Kubernetes: {_LABEL_RULE}")
    for name in options.metrics_from:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            raise JobError(f"--metrics-from {name!r} is no namespace: use at most 63 lower-case "
                           "letters, digits and hyphens")  # fmt: skip
    if options.metrics_from and options.metrics_port is None:
        raise JobError("--metrics-from is set, but the job has no metrics: set --metrics-port")
    if options.metrics_port == PORT:
        raise JobError(f"--metrics-port {PORT} is TensorFlow's port: choose another one")
    for name, value in container.labels.items():
        if name == QUEUE:
            # Its Jobs must be ended in another way, because Kueue resumes suspended ones.
            raise JobError(f"--label {name}={value} does not put the job into a queue: use --queue")
        if name.startswith("phalanx/") or name == COMPONENT:
            raise JobError(f"--label {name}={value}: Phalanx sets this label itself")
    for name, value in (*container.labels.items(), *options.node_selector.items()):
        if not _LABEL_NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
            raise JobError(f"{name}={value} cannot be a label in Kubernetes: {_LABEL_RULE}")


def _named_objects(options: PodOptions) -> Iterator[tuple[str, str | None]]:
    """Yield the names of other objects, each with the option that sets it."""
    yield from (("--image-pull-secret", each) for each in options.image_pull_secrets)
    yield "--priority-class", options.priority_class
    yield "--service-account", options.service_account
    yield "--controller-account", options.controller_account
    yield "--tensorboard-account", options.tensorboard_account


PODS = (
    replace(
        ENV_FROM_SECRET,
        help="Set a variable of every task to a key of a Secret  [default key: NAME]. "
        "Can be repeated.",
        metavar="NAME=SECRET[/KEY]",
    ),
    *CONTAINER,
    RUN_AS_USER,
    START_WITHIN,
    Option(
        "--namespace",
        "The namespace of all objects  [default: that of the context]",
        metavar="NAME",
    ),
    Option("--context", "The context of the kubeconfig  [default: the current one]"),
    Option(
        "--node-selector",
        "Use only nodes with this label. Can be repeated.",
        parse_label,
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
        "--scheduler",
        "The scheduler of the pods  [default: that of the cluster]",
        metavar="NAME",
    ),
    Option(
        "--queue",
        "The LocalQueue of Kueue that the job waits in.",
        metavar="NAME",
    ),
    Option(
        "--gang",
        "Start all tasks together or none, with this scheduler of the cluster.",
        Choice(tuple(each.value for each in Gang)),
    ),
    Option(
        "--service-account",
        "The service account of the pods  [default: none, and no token is mounted]",
        metavar="NAME",
    ),
    Option(
        "--image-pull-secret",
        "A Secret with which the image is pulled. Can be repeated.",
        metavar="NAME",
        multiple=True,
    ),
    Option(
        "--egress",
        "Allow connections to the other tasks, DNS and this target only, as PORT, CIDR or "
        "CIDR:PORT; `none` for nothing more. Can be repeated.",
        Egress.parse,
        "TARGET",
        multiple=True,
    ),
    Option(
        "--protect",
        "Keep nodes from being drained while the job runs (PodDisruptionBudget).",
        is_flag=True,
    ),
    Option(
        "--fs-group",
        "The group that owns the volumes of the pods.",
        IntegerRange(0, MAX_ID),
        "GID",
    ),
    replace(TENSORBOARD, help="Serve TensorBoard until `phalanx cancel`."),
    TENSORBOARD_CREDENTIALS,
    Option(
        "--tensorboard-account",
        "The service account of TensorBoard  [default: none]",
        metavar="NAME",
    ),
    Option(
        "--tensorboard-cpus",
        f"The processors of TensorBoard  [default: {TENSORBOARD_NEEDS.cpus:g}]",
        parse_cpus,
        "N",
    ),
    Option(
        "--tensorboard-memory",
        "The memory of TensorBoard  [default: 2G]",
        parse_size,
        "SIZE",
    ),
    Option(
        "--metrics-port",
        "Serve metrics for Prometheus at this port of the chief, and annotate its pod for it.",
        IntegerRange(1, 65535),
        "PORT",
    ),
    Option(
        "--metrics-from",
        "A namespace whose pods may read the metrics. Can be repeated.  [default: the job's own]",
        metavar="NAMESPACE",
        multiple=True,
    ),
    Option(
        "--ttl",
        "How long the cluster keeps the objects of a job that is over, at least a minute.",
        # The result of a job is read from its objects.
        partial(parse_duration, least=60),
        "TIME",
        default="1d",
    ),
    PATCH,
    GRACE,
)


def make_pod_options(values: OptionValues) -> PodOptions:
    return PodOptions(
        namespace=values["namespace"] or find_namespace(values["context"], os.environ),
        node_selector=dict(values["node_selector"]),
        tolerations=values["toleration"],
        priority_class=values["priority_class"],
        scheduler=values["scheduler"],
        queue=values["queue"],
        gang=Gang(values["gang"]) if values["gang"] else None,
        service_account=values["service_account"],
        controller_account=values.get("controller_account"),
        controller_needs=_make_needs(values, "controller", CONTROLLER_NEEDS),
        image_pull_secrets=values["image_pull_secret"],
        egress=values["egress"] or None,
        grace_periods=_make_grace_periods(values),
        ttl=PodOptions.ttl if values.get("ttl") is None else values["ttl"],
        protect=values["protect"],
        tensorboard=values["tensorboard"],
        tensorboard_credentials=_read_key(values, "tensorboard_credentials"),
        tensorboard_account=values["tensorboard_account"],
        tensorboard_needs=_make_needs(values, "tensorboard", TENSORBOARD_NEEDS),
        credentials=_read_key(values, "credentials"),
        metrics_port=values["metrics_port"],
        metrics_from=values["metrics_from"],
        run_as_user=values["run_as_user"],
        fs_group=values["fs_group"],
        patches=read_patches(values),
    )


def _make_needs(values: OptionValues, part: str, default: Resources) -> Resources:
    cpus, memory = values.get(f"{part}_cpus"), values.get(f"{part}_memory")
    return replace(default, cpus=cpus or default.cpus, memory=memory or default.memory)


def _make_grace_periods(values: OptionValues) -> GracePeriods:
    """Return the grace periods, of which only some backends have all."""
    given = {name: values[name] for name in ("linger", "evaluator_linger") if name in values}
    return GracePeriods(values["grace"], **given)


def _read_key(values: OptionValues, name: str) -> bytes | None:
    if not values[name]:
        return None
    return HIDDEN.encode() if hides_secrets(values) else Path(values[name]).read_bytes()
