"""The options of `phalanx launch`, declared as data, without a command-line library.

A launcher lists its options in `launch_options` and turns their values into an instance in
`from_options`. Options that several backends share are declared here once.

Example:
    class NomadLauncher:
        launch_help = "Start the tasks of a job with Nomad."
        launch_options = (*RESOURCES, Option("--region", "The region of Nomad.", metavar="NAME"))

        @classmethod
        def from_options(cls, job: Job, values: OptionValues) -> Self:
            return cls(region=values["region"])
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, TypeGuard

from phalanx.launch.base import LastingLauncher, PlanT
from phalanx.launch.job import Job
from phalanx.launch.secrets import parse_secret, parse_secret_file
from phalanx.launch.termination import GracePeriods
from phalanx.launch.values import (
    Amount,
    parse_cpus,
    parse_duration,
    parse_gpus,
    parse_pair,
    parse_per_role,
    parse_positive_duration,
    parse_size,
)

# The values of a launcher's options by their names: "--time-limit" is values["time_limit"].
OptionValues = Mapping[str, Any]


@dataclass(frozen=True)
class IntegerRange:
    """The value is a whole number in this range."""

    minimum: int
    maximum: int | None = None


@dataclass(frozen=True)
class Choice:
    """The value is one of these texts."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class FilePath:
    """The value is the path of a file, not of a directory; `absolute` resolves it."""

    exists: bool = True
    absolute: bool = False


@dataclass(frozen=True)
class Option:
    """An option of `phalanx launch BACKEND`, and a setting of the same name in phalanx.toml.

    Args:
        flag: The name with its dashes, as in `--time-limit`.
        help: What `--help` prints.
        type: A function that parses the text and raises a ValueError, or one of the types above.
            None takes any text.
        metavar: The placeholder of the value in `--help`.
        default: The value if the option is not set.
        multiple: Whether the option can be repeated. The value is then a tuple.
        is_flag: Whether the option takes no value. The value is then True or False.
        aliases: Former flags that still work and that `--help` does not show.
        refusal: Why the backend cannot honour the option. Setting it is then an error, and
            `--help` does not show it.
    """

    flag: str
    help: str = ""
    type: Callable[[str], object] | IntegerRange | Choice | FilePath | None = None
    metavar: str | None = None
    default: str | int | None = None
    multiple: bool = False
    is_flag: bool = False
    aliases: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def name(self) -> str:
        """The key of the option in the values that `from_options` gets."""
        return self.flag.lstrip("-").replace("-", "_")


class ConfigurableLauncher(LastingLauncher[PlanT], Protocol[PlanT]):
    """A launcher that declares the options of its `phalanx launch` command.

    A launcher that does not is constructed without arguments and gets the options `RESOURCES`.
    """

    launch_help: ClassVar[str]
    launch_options: ClassVar[tuple[Option, ...]]

    @classmethod
    def from_options(cls: type[Self], job: Job, values: OptionValues) -> Self:
        """Return the launcher that the options describe.

        Args:
            job: The job that is about to be launched.
            values: The values of `launch_options` by `Option.name`.

        Raises:
            JobError: The options contradict each other or do not suit the job.
        """
        ...


def is_configurable(
    launcher: type[LastingLauncher[Any]],
) -> TypeGuard[type[ConfigurableLauncher[Any]]]:
    return hasattr(launcher, "launch_options") and hasattr(launcher, "from_options")


TASK_COUNT = IntegerRange(1, 10_000)

SHAPE = (
    Option("--workers", "The number of workers beside the chief.", TASK_COUNT, "N"),
    Option("--ps", "The number of parameter servers.", TASK_COUNT, "N"),
    Option(
        "--no-chief", "Start workers only: worker 0 takes over the chief's duties.", is_flag=True
    ),
    Option(
        "--tf1",
        "PROGRAM is a TensorFlow 1 program: run it with TensorFlow 1's names, and with --master.",
        is_flag=True,
    ),
    Option(
        "--master",
        "Call the chief master in TF_CONFIG, and the environment cloud, as Cloud ML did.",
        is_flag=True,
    ),
    Option("--evaluator", "Add a task that evaluates each new checkpoint.", is_flag=True),
    Option("--model-dir", "The model_dir of TF_CONFIG.", metavar="DIR"),
    Option(
        "--env",
        "Set an environment variable for every task. Can be repeated.",
        parse_pair,
        "NAME=VALUE",
        multiple=True,
    ),
    Option(
        "--restarts", "How often a task that fails is restarted.", IntegerRange(0), "N", default=0
    ),
)
ENV_FROM_FILE = Option(
    "--env-from-secret",
    "Set a variable of every task to the content of a file of mode 0600. Can be repeated.",
    parse_secret_file,
    "NAME=FILE",
    multiple=True,
)
ENV_FROM_SECRET = replace(ENV_FROM_FILE, type=parse_secret, metavar="NAME=SECRET")
DATA_WORKERS = Option(
    "--data-workers",
    "The number of processes that prepare data (tf.data service). A dispatcher is added.",
    TASK_COUNT,
    "N",
)
ELASTIC = (
    Option(
        "--min-workers",
        "Go on with fewer workers when some are lost, but not with fewer than these.",
        IntegerRange(0),
        "N",
    ),
    Option(
        "--max-workers",
        "The most workers that `phalanx scale` may ask for; until then they are spare.",
        IntegerRange(1),
        "N",
    ),
    Option(
        "--rejoin",
        "With --min-workers: after how long a lost worker is tried again, longer each time.",
        parse_positive_duration,
        "TIME",
        default="5m",
    ),
)
NO_ELASTIC = tuple(
    replace(
        option,
        type=None,
        default=None,
        refusal="cannot change the number of workers of a running job: leave out "
        f"{option.flag}, or launch the job with ssh or slurm",
    )
    for option in ELASTIC
)
TIME_LIMIT = Option(
    "--time-limit",
    "End the job after this time, as in 12h or 30m.",
    parse_positive_duration,
    "TIME",
)
START_WITHIN = Option(
    "--start-within",
    "Cancel the job unless every task has started by then.",
    parse_positive_duration,
    "TIME",
)


def _make_amount(
    flag: str, what: str, example: str, parse: Callable[[str], Amount], metavar: str = "N"
) -> Option:
    text = f"The {what} of each task, or of each task of a role, as in {example}."
    return Option(flag, text, parse_per_role(parse), f"[ROLE=]{metavar}", multiple=True)


CPUS = _make_amount("--cpus", "processors", "4 or ps=2", parse_cpus)
MEMORY = _make_amount("--memory", "memory", "16G or ps=64G", parse_size, "SIZE")
GPUS = _make_amount("--gpus", "GPUs", "worker=2", parse_gpus)
RESOURCES = (CPUS, MEMORY, GPUS)
NO_MEMORY = Option(
    "--memory",
    refusal="cannot limit memory: leave out --memory, or launch the job on another backend",
)

GRACE = Option(
    "--grace",
    "The time between SIGTERM and SIGKILL when a task is ended.",
    parse_duration,
    "TIME",
    default=f"{GracePeriods.grace:g}s",
)
LINGERS = (
    Option(
        "--linger",
        "How long workers may run on after the chief has succeeded.",
        parse_duration,
        "TIME",
        default=f"{GracePeriods.linger:g}s",
    ),
    Option(
        "--evaluator-linger",
        "How long the evaluator may run on after the chief has succeeded.",
        parse_duration,
        "TIME",
        default=f"{GracePeriods.evaluator_linger:g}s",
    ),
)
GRACE_PERIODS = (GRACE, *LINGERS)

TENSORBOARD = Option("--tensorboard", "Serve TensorBoard while the job runs.", is_flag=True)
LOCAL_TENSORBOARD = replace(TENSORBOARD, help="Serve TensorBoard on port 6006 while the job runs.")
NO_TENSORBOARD = replace(
    TENSORBOARD,
    refusal=(
        "cannot run TensorBoard: start it where the model directory can be read, with phalanx "
        "board DIR"
    ),
)
# The options of backends that run plain processes on a cluster.
PROCESSES = (ENV_FROM_FILE, DATA_WORKERS, *RESOURCES, START_WITHIN, NO_TENSORBOARD)


def hides_secrets(values: OptionValues) -> bool:
    """Return whether the values that may be secrets are hidden: in a dry run, unless asked for."""
    return bool(values.get("dry_run") and not values.get("show_secrets"))


def make_grace_periods(values: OptionValues) -> GracePeriods:
    return GracePeriods(values["grace"], values["linger"], values["evaluator_linger"])
