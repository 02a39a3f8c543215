"""tf.estimator.RunConfig: the settings of a run, and the task of this process from TF_CONFIG."""

import copy
import difflib
import numbers
import os
from collections.abc import Callable, Iterable
from typing import Any, Self

import tensorflow.compat.v1 as tf

from phalanx.cluster.spec import PEERS, Role
from phalanx.cluster.tf_config import TFConfig, names_master, read_variable

_SETTINGS: dict[str, Any] = {
    "model_dir": None,
    "tf_random_seed": None,
    "save_summary_steps": 100,
    "save_checkpoints_steps": None,
    "save_checkpoints_secs": None,
    "session_config": None,
    "keep_checkpoint_max": 5,
    "keep_checkpoint_every_n_hours": 10000,
    "log_step_count_steps": 100,
    "train_distribute": None,
    "device_fn": None,
    "protocol": None,
    "eval_distribute": None,
    "experimental_distribute": None,
    "experimental_max_worker_delay_secs": None,
    "session_creation_timeout_secs": 7200,
}
_DEFAULT_SAVE_SECS = 600
UNSET: Any = object()
"""The default of the settings of which one replaces the other."""
_POSITIVE = ("keep_checkpoint_every_n_hours", "session_creation_timeout_secs")
_NOT_NEGATIVE = (
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "keep_checkpoint_max",
)


class TaskType:
    """The names of roles in TF_CONFIG."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


class RunConfig:
    """The settings of a run. The cluster, and this process's task in it, come from TF_CONFIG.

    Args:
        model_dir: The directory of checkpoints and summaries.
        tf_random_seed: The seed of the graph.
        save_summary_steps: Write summaries every so many steps.
        save_checkpoints_steps: Save every so many steps.
        save_checkpoints_secs: Save every so many seconds; 600 if neither is set.
        session_config: A `tf.ConfigProto`. Device filters are added if it has none.
        keep_checkpoint_max: How many checkpoints to keep; 0 or None keeps all.
        keep_checkpoint_every_n_hours: Keep one checkpoint for every so many hours besides.
        log_step_count_steps: Log the loss and the speed every so many steps.
        train_distribute: A strategy of `tf.distribute`. A `MirroredStrategy` trains on several
            devices of one process; one of parameter servers has no effect. Others are refused.
        device_fn: Places operations; by default variables go to the parameter servers in turn.
        protocol: The protocol of the server.
        eval_distribute: The same for evaluation.
        experimental_distribute: The same for both.
        experimental_max_worker_delay_secs: Not used: workers start at once.
        session_creation_timeout_secs: How long a worker waits for the chief.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = UNSET,
        save_checkpoints_secs: Any = UNSET,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Callable[[Any], str] | None = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: int = 7200,
        **unknown: Any,
    ) -> None:
        refuse_unknown(unknown, _SETTINGS)
        given = {name: value for name, value in locals().items() if name in _SETTINGS}
        steps, secs = save_checkpoints_steps, save_checkpoints_secs
        is_set = steps is not UNSET, secs is not UNSET
        given["save_checkpoints_steps"] = steps if is_set[0] else None
        given["save_checkpoints_secs"] = secs if is_set[1] else None
        if not any(is_set):
            given["save_checkpoints_secs"] = _DEFAULT_SAVE_SECS
        self._read_task()
        if model_dir is not None:
            given["model_dir"] = os.fspath(model_dir)
        elif self._tf_config.model_dir:
            given["model_dir"] = self._tf_config.model_dir
        self._settings = given
        self._check()

    def _read_task(self) -> None:
        """Read the cluster and the task from TF_CONFIG."""
        self._tf_config = read_variable(os.environ) or TFConfig()
        chief = "master" if names_master(os.environ) else "chief"
        cluster, task = self._tf_config.cluster, self._tf_config.task
        jobs: dict[str, dict[int, str]] = {}
        for each, address in sorted(cluster.addresses.items()):
            name = chief if each.role is Role.CHIEF else str(each.role)
            if each.role in PEERS:
                jobs.setdefault(name, {})[each.index] = address
        is_distributed = bool(jobs) and task.role is not Role.EVALUATOR
        self._cluster_spec = tf.train.ClusterSpec(jobs if is_distributed else {})
        self._task_type = chief if task.role is Role.CHIEF else str(task.role)
        if not jobs and task.role is Role.CHIEF:
            self._task_type = TaskType.WORKER
        self._task_id = task.index
        self._num_ps = len(jobs.get("ps", ())) if is_distributed else 0
        trainers = len(jobs.get("worker", ())) + len(jobs.get(chief, ()))
        self._num_workers = trainers if is_distributed else int(task.role is not Role.EVALUATOR)
        self._master = (
            f"grpc://{cluster.addresses[task]}"
            if len(cluster.addresses) > 1 and (task in cluster.addresses and is_distributed)
            else ""
        )
        self._evaluation_master = ""

    def _check(self) -> None:
        settings = self._settings
        if settings["save_checkpoints_steps"] and settings["save_checkpoints_secs"]:
            raise ValueError(
                "RunConfig: both save_checkpoints_steps and save_checkpoints_secs are set: set one"
            )
        for name in (*_NOT_NEGATIVE, *_POSITIVE):
            value = settings[name]
            if value is not None and not isinstance(value, numbers.Real):
                raise TypeError(f"RunConfig: {name} is {value!r}: it must be a number")
        for name in _NOT_NEGATIVE:
            if settings[name] is not None and settings[name] < 0:
                raise ValueError(f"RunConfig: {name} is {settings[name]}: it must be at least 0")
        for name in _POSITIVE:
            if settings[name] is not None and settings[name] <= 0:
                raise ValueError(f"RunConfig: {name} is {settings[name]}: it must be above 0")
        config = settings["session_config"]
        if config is not None and not isinstance(config, tf.ConfigProto):
            raise TypeError(f"RunConfig: session_config is {config!r}: it must be a tf.ConfigProto")
        if settings["device_fn"] is not None and not callable(settings["device_fn"]):
            raise TypeError(f"RunConfig: device_fn is {settings['device_fn']!r}: pass a function")

    def replace(self, **settings: Any) -> Self:
        """Return a copy with other settings.

        Args:
            **settings: The settings to change, by their names.

        Returns:
            The copy.
        """
        refuse_unknown(settings, _SETTINGS, ValueError)
        changed = copy.copy(self)
        changed._settings = {**self._settings, **settings}
        # Setting one way of saving unsets the other.
        if settings.get("save_checkpoints_steps") and "save_checkpoints_secs" not in settings:
            changed._settings["save_checkpoints_secs"] = None
        if settings.get("save_checkpoints_secs") and "save_checkpoints_steps" not in settings:
            changed._settings["save_checkpoints_steps"] = None
        changed._check()
        return changed

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS and "_settings" in self.__dict__:
            return self._settings[name]
        raise AttributeError(f"RunConfig has no setting {name!r}")

    @property
    def session_config(self) -> Any:
        """The `tf.ConfigProto` of sessions; with filters, so that no task waits for its peers."""
        config = tf.ConfigProto()
        given = self._settings["session_config"]
        if given is None:
            config.allow_soft_placement = True
        else:
            config.CopyFrom(given)
        if not config.device_filters and self._num_ps:
            own = f"/job:{self._task_type}/task:{self._task_id}"
            everything = [f"/job:{job}" for job in self._cluster_spec.jobs]
            filters = everything if self._task_type == TaskType.PS else ["/job:ps", own]
            config.device_filters.extend(filters)
        return config

    @property
    def cluster_spec(self) -> Any:
        """The `tf.train.ClusterSpec`; empty in a single process and on an evaluator."""
        return self._cluster_spec

    @property
    def task_type(self) -> str:
        """The role of this task: chief or master, worker, ps or evaluator."""
        return self._task_type

    @property
    def task_id(self) -> int:
        """The index of this task among those of its role."""
        return self._task_id

    @property
    def global_id_in_cluster(self) -> int:
        """The number of this task among all: the chief, the workers, then the ps."""
        tasks = self._tf_config.cluster.tasks()
        task = self._tf_config.task
        return tasks.index(task) if task in tasks else 0

    @property
    def is_chief(self) -> bool:
        """Whether this task saves and initializes: the chief, or worker 0 without one."""
        return self._tf_config.is_chief()

    @property
    def master(self) -> str:
        """The target of training sessions; empty in a single process."""
        return self._master

    @property
    def evaluation_master(self) -> str:
        """The target of evaluation sessions; empty for a session in this process."""
        return self._evaluation_master

    @property
    def num_ps_replicas(self) -> int:
        """The number of parameter servers."""
        return self._num_ps

    @property
    def num_worker_replicas(self) -> int:
        """The number of tasks that train, the chief included."""
        return self._num_workers

    @property
    def service(self) -> None:
        """None: TF_CONFIG describes no service."""
        return


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], error: type[Exception] = TypeError
) -> None:
    """Raise an error that names a setting that does not exist, and the most similar one."""
    for name in sorted(set(given) - set(known)):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
        raise error(f"RunConfig has no setting {name!r}: {hint}")


def list_addresses(config: RunConfig) -> list[str]:
    """Return the addresses of all tasks of the cluster."""
    jobs = config.cluster_spec.as_dict().values()
    return [
        address
        for tasks in jobs
        for address in (tasks if isinstance(tasks, list) else tasks.values())
    ]


def make_device_fn(config: RunConfig) -> Callable[[Any], str] | None:
    """Return what places the operations of training: the user's function, or variables on ps."""
    if config.device_fn is not None:
        device_fn: Callable[[Any], str] = config.device_fn
        return device_fn
    if not config.num_ps_replicas:
        return None
    placed: Callable[[Any], str] = tf.train.replica_device_setter(
        ps_tasks=config.num_ps_replicas,
        worker_device=f"/job:{config.task_type}/task:{config.task_id}",
        merge_devices=True,
        ps_ops=list(PS_OPS),
        cluster=config.cluster_spec,
    )
    return placed


PS_OPS = (
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
    "MutableHashTable",
    "MutableHashTableV2",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "VarHandleOp",
)
"""The operations that live on parameter servers."""
