"""`run`: trains an experiment, or calls any function, on the executors of a Spark session."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from phalanx.cluster.job_secret import with_secret
from phalanx.cluster.spec import Cluster, Role, Task, count_roles
from phalanx.errors import ConfigurationError, JobError, LaunchError, PhalanxError, WorkerError
from phalanx.guard.library import ANY
from phalanx.guard.own_address import find_own_address
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.job import check_counts, cluster_counts, make_tasks
from phalanx.records.storage import is_remote
from phalanx.spark import stage
from phalanx.spark.child_process import deserialize, serialize, train_experiment
from phalanx.spark.job_controller import Cause, Failure, JobController
from phalanx.spark.task import Assignment
from phalanx.train.config import RunConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from phalanx.train.experiment import Experiment
    from phalanx.train.hooks.base import Hook

# From the submission until the last task has connected; slots are already free then.
_START_SECONDS = 120.0
_RESTART_SECONDS = 120.0

Log = Callable[[str], None]
Function = Callable[..., Any]


@dataclass(frozen=True)
class SparkJob:
    tasks: tuple[Task, ...]
    local_mode: bool = False
    gpus_per_task: int | None = None
    gpu_resource_name: str = "gpu"
    environment: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 10.0
    driver_port: int = 0
    log: Log = print
    spark: SparkSession | None = None


def run(
    train: Experiment | Function,
    config: RunConfig | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook] = (),
    chief: bool = True,
    workers: int = 0,
    ps: int = 0,
    evaluators: int = 0,
    mode: str | None = None,
    gpus_per_task: int | None = None,
    gpu_resource_name: str = "gpu",
    local_mode: bool = False,
    restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    wait_seconds: float = 10.0,
    driver_port: int = 0,
    log: Log = print,
    spark: SparkSession | None = None,
) -> Any:
    """Train inside a Spark cluster, with each task as a task of one barrier stage.

        config = phalanx.RunConfig(model_dir="/shared/digits", train_steps=1000)
        result = phalanx.spark.run(Digits(), config, workers=2, ps=1)  # takes four slots
        print(result.metrics)

    When a task fails, all tasks are ended and its traceback is raised, unless `restarts` are left:
    then all tasks start again, an experiment from its last checkpoint.

    Args:
        train: An experiment, or a function that is called on every task with TF_CONFIG set.
        config: The settings of an experiment; `model_dir` must be reachable by every executor.
        arguments: Keyword arguments of a function.
        hooks: The hooks of an experiment.
        chief: Whether there is a chief. Without one, the first worker has the chief's duties.
        workers: The number of workers.
        ps: The number of parameter servers.
        evaluators: The number of evaluators.
        mode: `sync` or `async`, in place of the config's.
        gpus_per_task: GPUs to request from Spark. None uses those that Spark's configuration
            assigns to each task, 0 hides all.
        gpu_resource_name: Spark's name for GPUs.
        local_mode: Run the tasks as processes of this machine, without Spark.
        restarts: How often all tasks may start again.
        environment: Variables for every task.
        wait_seconds: How long to wait for free slots.
        driver_port: The port of the driver that tasks connect to; any free one by default.
        log: Receives the lines that tasks print, with the task's name.
        spark: The session; the active one by default.

    Returns:
        The chief's `Result` without its model, or what the function has returned on the chief.

    Raises:
        JobError: The job cannot run as described, or Spark has too few free slots.
        WorkerError: A task failed; the message has its traceback.
        LaunchError: The job was cancelled, or a task was lost.
    """
    counts = cluster_counts(chief, workers, ps, evaluators)
    check_counts(counts)
    if restarts < 0:
        raise JobError(f"restarts is {restarts}: it must be at least 0")
    function = _make_function(train, config, arguments, hooks, mode)
    tasks, variables = tuple(make_tasks(counts)), dict(environment or {})
    gpus = (gpus_per_task, gpu_resource_name)
    job = SparkJob(tasks, local_mode, *gpus, variables, wait_seconds, driver_port, log, spark)
    return run_function(function, job, restarts)


def run_function(function: Function, job: SparkJob, restarts: int = 0) -> Any:
    """Call the function on every task; return its value on the chief."""
    pickled = serialize(function, "the function and its arguments")
    for attempt in range(restarts + 1):
        try:
            # Spark needs some time to replace lost executors.
            wait_seconds = max(job.wait_seconds, _RESTART_SECONDS if attempt else 0)
            return _run_once(pickled, replace(job, wait_seconds=wait_seconds))
        except _AttemptError as failed:
            if failed.is_final or attempt == restarts:
                raise failed.error from None
            last = str(failed.error).strip().splitlines()[-1]
            job.log(f"phalanx: {last}; restarting all tasks, {attempt + 1} of {restarts}")
    raise AssertionError


class _AttemptError(Exception):
    def __init__(self, error: PhalanxError, is_final: bool = False) -> None:
        super().__init__()
        self.error, self.is_final = error, is_final


def _run_once(function: bytes, job: SparkJob) -> Any:
    session = None if job.local_mode else stage.find_session(job.spark)
    run_id = secrets.token_hex(8)
    tag = f"phalanx-{run_id}"
    if session is not None:
        stage.check_encryption(session)
        needed = (job.gpus_per_task or 0, job.gpu_resource_name)
        count = partial(stage.count_slots, session.sparkContext, *needed)
        roles, gpus = count_roles(job.tasks), job.gpus_per_task or 0
        stage.wait_for_slots(len(job.tasks), roles, count, job.wait_seconds, gpus)

    def cancel(absent: Sequence[Task] = ()) -> None:
        if session is not None:
            with contextlib.suppress(Exception):
                session.sparkContext.cancelJobsWithTag(tag)

    width = max(len(str(task)) for task in job.tasks)

    def show(task: Task, lines: list[str]) -> None:
        job.log("\n".join(f"{str(task).ljust(width)} | {line}" for line in lines))

    host = bind = "127.0.0.1"
    if session is not None:
        conf = session.sparkContext.getConf()
        host = conf.get("spark.driver.host", host)
        bind = conf.get("spark.driver.bindAddress", host)
    with JobController(
        job.tasks,
        show,
        host=_listening_address(bind),
        port=job.driver_port,
        wait_seconds=_START_SECONDS,
        on_absent=cancel,
    ) as controller:
        origin = ((host, controller.port), controller.token, run_id)
        environment = with_secret(job.environment)
        assignment = Assignment(job.tasks, *origin, function, environment)
        try:
            if session is None:
                trainers = sum(task.role in (Role.CHIEF, Role.WORKER) for task in job.tasks)
                threads = max(1, Machine.inspect().processors // trainers)
                end = controller.disconnect
                values = stage.run_on_driver(assignment, threads, job.gpus_per_task, end)
            else:
                wanted = (job.gpus_per_task, job.gpu_resource_name)
                values = stage.run_on_spark(session, assignment, tag, *wanted)
        except Exception as error:
            if controller.absent and session is not None:
                raise stage.too_few_slots(len(job.tasks), roles, count(), gpus) from None
            raise _explain(controller.failure, error) from error
        except BaseException:
            cancel()
            raise
    chief = Cluster(dict.fromkeys(job.tasks, "")).chief()
    value = values[job.tasks.index(chief)]
    if value is None:
        raise _explain(controller.failure, None)
    return deserialize(value)


def _listening_address(host: str) -> str:
    """Return the address of this machine that Spark uses; "", for all, if it is only a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ""
    address = find_own_address(host).address
    return "" if address == ANY else address


def _explain(failure: Failure | None, error: Exception | None) -> _AttemptError:
    """Return the failed task's own error, or else Spark's reason without its stack trace."""
    if failure is not None and failure.is_final:
        return _AttemptError(ConfigurationError(failure.text), is_final=True)
    if failure is not None and failure.cause is not Cause.LOST:
        return _AttemptError(WorkerError(f"{failure.task} failed:\n{failure.text}"))
    reason = _reason(error) if error else "the chief has returned no value"
    task = f"{failure.task} is gone: " if failure else ""
    return _AttemptError(LaunchError(f"{task}the job did not succeed: {reason}"))


def _reason(error: Exception) -> str:
    if isinstance(error, PhalanxError):
        return str(error)
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    # The rest is Java's stack trace.
    message = text.partition("\n\tat ")[0].strip()
    first, _, trace = message.partition("Traceback (most recent call last):")
    errors = [line for line in trace.splitlines() if line and not line.startswith((" ", "\t"))]
    reason = errors[0] if errors else (first.splitlines() or [type(error).__name__])[-1]
    if reason == "ModuleNotFoundError: No module named 'phalanx'":
        fix = "install phalanx for the Python of the executors, or name another (PYSPARK_PYTHON)"
        return f"{reason}: {fix}"
    return reason


def _make_function(
    train: Experiment | Function,
    config: RunConfig | None,
    arguments: Mapping[str, Any] | None,
    hooks: Sequence[Hook],
    mode: str | None,
) -> Function:
    # If nothing has imported the module, there can be no experiment; a function needs none.
    module = sys.modules.get("phalanx.train.experiment")
    if module is not None and isinstance(train, module.Experiment):
        if arguments:
            raise JobError("arguments are for functions: an experiment gets a config")
        return partial(train_experiment, train, _complete(config, mode), tuple(hooks))
    if not callable(train):
        raise JobError(f"{train!r} cannot be trained: give an Experiment or a function")
    given = {"config": config is not None, "hooks": bool(hooks), "mode": mode is not None}
    if name := next((name for name, is_given in given.items() if is_given), None):
        fix = "pass what a function needs in arguments={...}"
        raise JobError(f"{name} is for experiments: {fix}")
    return partial(train, **(arguments or {}))


def _complete(config: RunConfig | None, mode: str | None) -> RunConfig:
    config = config or RunConfig()
    if mode is not None:
        config = config.replace(mode=mode)
    if config.model_dir is None:
        fix = "name a directory that every executor can reach, in RunConfig(model_dir=...)"
        raise ConfigurationError(f"model_dir is not set: {fix}")
    if not is_remote(config.model_dir):
        # Executors have a working directory of their own.
        config = config.replace(model_dir=os.path.abspath(config.model_dir))  # noqa: PTH100
    return config
