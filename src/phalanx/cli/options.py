"""The options that commands share, and the job they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from phalanx.cli.values import (
    DURATION,
    NAMED_VALUE,
    SOME_DURATION,
    Parsed,
    for_roles,
    parse_cpus,
    parse_gpus,
    parse_size,
)
from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources, check_name, make_name
from phalanx.launch.kube.manifest import Manifest, load
from phalanx.launch.termination import GracePeriods

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]

COUNT = click.IntRange(1, 10_000)
_AMOUNT = "[ROLE=]N"

FIRST: tuple[Decorator[Any], ...] = (
    click.option(
        "-f",
        "--file",
        metavar="TOML",
        is_eager=True,
        help="Take settings from this file  [default: phalanx.toml, if there is one]",
    ),
    click.option("--name", help="The job's name  [default: from PROGRAM]"),
)

SHAPE: tuple[Decorator[Any], ...] = (
    click.option("--workers", type=COUNT, metavar="N", help="Workers beside the chief."),
    click.option("--ps", type=COUNT, metavar="N", help="Parameter servers."),
    click.option("--no-chief", is_flag=True, help="Only workers: worker 0 has the chief's duties."),
    click.option("--evaluator", is_flag=True, help="A task that evaluates the checkpoints."),
    click.option("--model-dir", metavar="DIR", help="Put into TF_CONFIG as model_dir."),
    click.option(
        "--env",
        multiple=True,
        type=NAMED_VALUE,
        metavar="NAME=VALUE",
        help="Set a variable for every task. Can be repeated.",
    ),
    click.option(
        "--restarts",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="How often a task that fails is started again.",
    ),
)

TIME_LIMIT: Decorator[Any] = click.option(
    "--time-limit", type=SOME_DURATION, metavar="TIME", help="End the job after 12h, 30m."
)

CPUS: Decorator[Any] = click.option(
    "--cpus",
    multiple=True,
    type=Parsed("amount", for_roles(parse_cpus)),
    metavar=_AMOUNT,
    help="Processors of each task, or of a role's: 4, ps=2.",
)
MEMORY: Decorator[Any] = click.option(
    "--memory",
    multiple=True,
    type=Parsed("amount", for_roles(parse_size)),
    metavar="[ROLE=]SIZE",
    help="Memory of each task, or of a role's: 16G, ps=64G.",
)
GPUS: Decorator[Any] = click.option(
    "--gpus",
    multiple=True,
    type=Parsed("amount", for_roles(parse_gpus)),
    metavar=_AMOUNT,
    help="GPUs of each task, or of a role's: worker=2.",
)


def _refused(option: str, reason: str, **more: Any) -> Decorator[Any]:
    """An option that a backend has no way to honour."""

    def refuse(context: click.Context, parameter: click.Parameter, value: object) -> None:
        if value:
            raise JobError(f"phalanx launch {context.info_name} {reason}")

    return click.option(option, hidden=True, expose_value=False, callback=refuse, **more)


NO_TENSORBOARD: Decorator[Any] = _refused(
    "--tensorboard",
    "keeps no TensorBoard running: start it where the model directory can be read, with phalanx "
    "board DIR",
    is_flag=True,
)
NO_MEMORY: Decorator[Any] = _refused(
    "--memory", "limits no memory: leave out --memory, or launch the job with a manager"
)

START_WITHIN: Decorator[Any] = click.option(
    "--start-within",
    type=SOME_DURATION,
    metavar="TIME",
    help="Take the job back unless every task has started by then.",
)

PATCH: Decorator[Any] = click.option(
    "--patch",
    "patches",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="YAML",
    help="Change what is rendered by what is in this file. Can be repeated.",
)

DATA_WORKERS: Decorator[Any] = click.option(
    "--data-workers",
    type=COUNT,
    metavar="N",
    help="Processes that prepare the data (tf.data service), with a dispatcher.",
)

TENSORBOARD: Decorator[Any] = click.option(
    "--tensorboard", is_flag=True, help="Serve TensorBoard on port 6006 while the job runs."
)

GRACE: Decorator[Any] = click.option(
    "--grace",
    type=DURATION,
    default=f"{GracePeriods.grace:g}s",
    show_default=True,
    metavar="TIME",
    help="Between SIGTERM and SIGKILL, when a task is ended.",
)
PATIENCE: tuple[Decorator[Any], ...] = (
    GRACE,
    click.option(
        "--linger",
        type=DURATION,
        default=f"{GracePeriods.linger:g}s",
        show_default=True,
        metavar="TIME",
        help="How long workers may go on after the chief is done.",
    ),
    click.option(
        "--evaluator-linger",
        type=DURATION,
        default=f"{GracePeriods.evaluator_linger:g}s",
        show_default=True,
        metavar="TIME",
        help="How long the evaluator may go on after the chief is done.",
    ),
)

MOUNT: Decorator[Any] = click.option(
    "--mount",
    "mounts",
    multiple=True,
    type=Parsed("mount", Mount.parse),
    metavar="SOURCE:TARGET",
    help="Mount /host/path, a volume or nfs://server/path; :ro to read only. Can be repeated.",
)
LABEL: Decorator[Any] = click.option(
    "--label",
    "labels",
    multiple=True,
    type=NAMED_VALUE,
    metavar="NAME=VALUE",
    help="Label whatever is made. Can be repeated.",
)
CREDENTIALS: Decorator[Any] = click.option(
    "--credentials",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="A key for Google Cloud, mounted and set in GOOGLE_APPLICATION_CREDENTIALS.",
)
CONTAINER: tuple[Decorator[Any], ...] = (
    click.option("--image", metavar="IMAGE", help="What the tasks run in."),
    MOUNT,
    LABEL,
    CREDENTIALS,
    click.option("--python", default="python", show_default=True, help="The image's Python."),
)

DRY_RUN: Decorator[Any] = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
)
MODULE: Decorator[Any] = click.option(
    "-m", "--module", is_flag=True, help="PROGRAM is a module, as in `python -m`."
)
ARGUMENTS: Decorator[Any] = click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]..."
)
LAST: tuple[Decorator[Any], ...] = (
    click.option("--follow", is_flag=True, help="Stay, show all output, and exit as the job does."),
    DRY_RUN,
    MODULE,
    click.option(
        "--command", "is_command", is_flag=True, help="PROGRAM is any command; as -- does."
    ),
    click.argument("program", metavar="PROGRAM", required=False),
    ARGUMENTS,
)


def options(*own: Decorator[Any]) -> Callable[[Function], Function]:
    """The common options of `phalanx launch` around a backend's own."""
    return in_order(*FIRST, *SHAPE, TIME_LIMIT, *own, *LAST)


def in_order(*decorators: Decorator[Any]) -> Callable[[Function], Function]:
    """Options in the order in which --help is to show them."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def make_job(values: Mapping[str, Any]) -> Job:
    """The job that the options describe."""
    program = values["program"]
    if not program:
        raise click.UsageError("Missing argument 'PROGRAM': give it, or put it into phalanx.toml")
    kinds = {"module": ProgramKind.MODULE, "is_command": ProgramKind.COMMAND}
    kind = next((kinds[flag] for flag in kinds if values[flag]), ProgramKind.FILE)
    name = values.get("name") or make_name(program)
    check_name(name)
    job = Job(
        name=name,
        program=Program(kind, program, tuple(values["arguments"])),
        chief=not values["no_chief"],
        workers=values["workers"] or 0,
        ps=values["ps"] or 0,
        evaluators=int(values["evaluator"]),
        model_dir=values["model_dir"],
        restarts=values["restarts"],
        threads=values.get("threads"),
        environment=_environment(values["env"]),
        resources=_resources(values),
        time_limit=values.get("time_limit"),
        data_workers=values.get("data_workers") or 0,
    )
    job.validate()
    return job


def make_container(values: Mapping[str, Any]) -> Container:
    """The containers that the options describe."""
    if not values["image"]:
        raise JobError("no image was named to run the tasks in: add --image")
    return Container(
        values["image"],
        values["python"],
        values["mounts"],
        dict(values["labels"]),
        values["credentials"],
    )


def read_patches(values: Mapping[str, Any]) -> tuple[Manifest, ...]:
    """What the options would have changed."""
    return tuple(patch for path in values["patches"] for patch in load(Path(path)))


def _environment(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    own = {"TF_CONFIG"} & {name for name, _ in pairs}
    if own:
        raise JobError("--env TF_CONFIG cannot be set: every task gets one of its own")
    return dict(pairs)


def _resources(values: Mapping[str, Any]) -> dict[Role, Resources]:
    """An amount for one role weighs more than one for all, whichever comes first."""
    amounts: dict[str, dict[Role, Any]] = {}
    for kind in ("cpus", "memory", "gpus"):
        given: Sequence[dict[Role, Any]] = values.get(kind) or ()
        amounts[kind] = {}
        for each in sorted(given, key=len, reverse=True):
            amounts[kind] |= each
    if not any(amounts.values()):
        return {}
    return {
        role: Resources(
            amounts["cpus"].get(role), amounts["memory"].get(role), amounts["gpus"].get(role, 0)
        )
        for role in Role
    }


def check_file(job: Job) -> None:
    """Raise a JobError if a program that must be here is not."""
    if job.program.kind is ProgramKind.FILE and not Path(job.program.target).exists():
        raise JobError(
            f"there is no file {job.program.target}: to run a command that is not a Python file, "
            "put -- before it"
        )
