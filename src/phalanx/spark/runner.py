"""`run`: an experiment, or any function, trained by the executors of a Spark session."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from phalanx.cluster.spec import Cluster, Role, Task, count_roles
from phalanx.errors import ConfigurationError, JobError, LaunchError, PhalanxError, WorkerError
from phalanx.launch.backends.local.machine import Machine
from phalanx.records.storage import is_remote
from phalanx.spark import stage
from phalanx.spark.call import Call, pack, train_experiment, unpack
from phalanx.spark.job_controller import JobController
from phalanx.spark.job_state import Cause, Failure
from phalanx.spark.slots import count_slots, too_few, wait_for_slots
from phalanx.spark.task import Assignment

# From the submission to the last task's first word; that slots are free is known before.
_START_SECONDS = 120.0
_AGAIN_SECONDS = 120.0

Log = Callable[[str], None]


@dataclass(frozen=True)
class Where:
    """Where and how the tasks of a job run."""

    tasks: tuple[Task, ...]
    local_mode: bool = False
    gpus_per_task: int | None = None
    gpu_resource_name: str = "gpu"
    environment: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 10.0
    driver_port: int = 0
    log: Log = print
    spark: Any = None


def run(
    train: Any,
    config: Any = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    hooks: Sequence[Any] = (),
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
    spark: Any = None,
) -> Any:
    """Train inside a Spark cluster, each task of the training as a task of one barrier stage.

        config = phalanx.RunConfig(model_dir="/shared/digits", train_steps=1000)
        result = phalanx.spark.run(Digits(), config, workers=2, ps=1)
        print(result.metrics)

    That takes four slots: a chief, two workers, a parameter server. `chief=False` leaves the
    chief's duties to the first worker. An experiment gives back the chief's `Result`, without the
    model. A function is called on every task, with `arguments` by name and TF_CONFIG set, and what
    it returns on the chief is returned here.

    When a task fails, all are ended and its own traceback is raised, unless there are `restarts`
    left: then all begin again, an experiment from its last checkpoint.

    `gpus_per_task` asks Spark for GPUs (None takes what its configuration gives to each task, 0
    hides them). `local_mode` runs the same tasks as processes of this machine. `environment` is
    added to every task's. `wait_seconds` is how long to wait for free slots. `log` is given the
    lines that tasks print, with their names.
    """
    tasks = _tasks(chief, workers, ps, evaluators)
    if restarts < 0:
        raise JobError(f"restarts is {restarts}: it must be at least 0")
    call = _make_call(train, config, arguments, hooks, mode)
    where = Where(
        tasks,
        local_mode,
        gpus_per_task,
        gpu_resource_name,
        dict(environment or {}),
        wait_seconds,
        driver_port,
        log,
        spark,
    )
    return run_call(call, where, restarts)


def run_call(call: Call, where: Where, restarts: int = 0) -> Any:
    """Make the call on every task; what it returned on the chief."""
    packed = pack(call, "the function and its arguments")
    for attempt in range(restarts + 1):
        try:
            # Executors that were lost are replaced, which takes its time.
            grace_periods = max(where.wait_seconds, _AGAIN_SECONDS if attempt else 0)
            return _run_once(packed, replace(where, wait_seconds=grace_periods))
        except _Failed as failed:
            if failed.is_final or attempt == restarts:
                raise failed.error from None
            last = str(failed.error).strip().splitlines()[-1]
            where.log(f"phalanx: {last}; all tasks begin again, {attempt + 1} of {restarts}")
    raise AssertionError


class _Failed(Exception):  # noqa: N818 - never seen outside
    def __init__(self, error: PhalanxError, is_final: bool = False) -> None:
        super().__init__()
        self.error, self.is_final = error, is_final


def _run_once(call: bytes, where: Where) -> Any:
    session = None if where.local_mode else stage.find_session(where.spark)
    run_id = secrets.token_hex(8)
    tag = f"phalanx-{run_id}"
    if session is not None:
        context = session.sparkContext
        count = partial(count_slots, context, where.gpus_per_task or 0, where.gpu_resource_name)
        wait_for_slots(len(where.tasks), count_roles(where.tasks), count, where.wait_seconds)

    def cancel(absent: Sequence[Task] = ()) -> None:
        if session is not None:
            with contextlib.suppress(Exception):
                session.sparkContext.cancelJobsWithTag(tag)

    width = max(len(str(task)) for task in where.tasks)

    def show(task: Task, lines: list[str]) -> None:
        where.log("\n".join(f"{str(task).ljust(width)} | {line}" for line in lines))

    controller = JobController(
        where.tasks,
        show,
        port=where.driver_port,
        wait_seconds=_START_SECONDS,
        on_absent=cancel,
    )
    with controller:
        host = "127.0.0.1"
        if session is not None:
            host = session.sparkContext.getConf().get("spark.driver.host", host)
        assignment = Assignment(
            where.tasks, (host, controller.port), controller.token, run_id, call, where.environment
        )
        try:
            if session is None:
                threads = max(1, Machine.inspect().processors // _count_trainers(where.tasks))
                values = stage.run_on_driver(
                    assignment, threads, where.gpus_per_task, controller.hang_up
                )
            else:
                values = stage.run_on_spark(
                    session, assignment, tag, where.gpus_per_task, where.gpu_resource_name
                )
        except Exception as error:
            if controller.absent and session is not None:
                raise too_few(len(where.tasks), count_roles(where.tasks), count()) from None
            raise _explain(controller.failure, error) from error
        except BaseException:
            cancel()
            raise
    chief = Cluster(dict.fromkeys(where.tasks, "")).chief()
    value = values[where.tasks.index(chief)]
    if value is None:
        raise _explain(controller.failure, None)
    return unpack(value)


def _explain(failure: Failure | None, error: Exception | None) -> _Failed:
    """The failed task's own words, or else Spark's reason without its trace."""
    if failure is not None and failure.is_final:
        return _Failed(ConfigurationError(failure.text), is_final=True)
    if failure is not None and failure.cause is not Cause.LOST:
        return _Failed(WorkerError(f"{failure.task} failed:\n{failure.text}"))
    reason = _reason(error) if error else "it has returned nothing"
    who = f"{failure.task} is gone: " if failure else ""
    return _Failed(LaunchError(f"{who}the job did not succeed: {reason}"))


def _reason(error: Exception) -> str:
    if isinstance(error, PhalanxError):
        return str(error)
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    # What comes after the first frame of Java's trace is Java.
    said = text.partition("\n\tat ")[0].strip()
    first, _, trace = said.partition("Traceback (most recent call last):")
    own = trace.splitlines()
    words = [line for line in own if line and not line.startswith((" ", "\t"))]
    reason = words[0] if words else (first.splitlines() or [type(error).__name__])[-1]
    if reason == "ModuleNotFoundError: No module named 'phalanx'":
        reason += (
            ": install phalanx for the Python of the executors, or name another (PYSPARK_PYTHON)"
        )
    return reason


def _count_trainers(tasks: Sequence[Task]) -> int:
    return sum(task.role in (Role.CHIEF, Role.WORKER) for task in tasks)


def _tasks(chief: bool, workers: int, ps: int, evaluators: int) -> tuple[Task, ...]:
    counts = {
        Role.CHIEF: int(chief),
        Role.WORKER: workers,
        Role.PS: ps,
        Role.EVALUATOR: evaluators,
    }
    for role, count in counts.items():
        if count < 0:
            raise JobError(f"{role} is {count}: it must be at least 0")
    if not chief and not workers:
        raise JobError("without a chief and without workers nobody trains: set workers=1 or more")
    if ps and not workers:
        raise JobError(f"{ps} ps but no worker: parameter servers serve workers; set workers=1")
    return tuple(Task(role, index) for role, count in counts.items() for index in range(count))


def _make_call(
    train: Any,
    config: Any,
    arguments: Mapping[str, Any] | None,
    hooks: Sequence[Any],
    mode: str | None,
) -> Call:
    if _is_experiment(train):
        if arguments:
            raise JobError("arguments are for functions: an experiment gets a config")
        return Call(
            train_experiment,
            {"experiment": train, "config": _settle(config, mode), "hooks": tuple(hooks)},
        )
    if not callable(train):
        raise JobError(f"{train!r} cannot be trained: give an Experiment or a function")
    given = {"config": config is not None, "hooks": bool(hooks), "mode": mode is not None}
    for name, is_given in given.items():
        if is_given:
            raise JobError(f"{name} is for experiments: give a function what it needs by arguments")
    return Call(train, dict(arguments or {}))


def _is_experiment(train: Any) -> bool:
    """Without TensorFlow there can be no experiment, and it is not loaded for a plain function."""
    module = sys.modules.get("phalanx.train.experiment")
    return module is not None and isinstance(train, module.Experiment)


def _settle(config: Any, mode: str | None) -> Any:
    from phalanx.train.config import RunConfig  # noqa: PLC0415

    config = config or RunConfig()
    if mode is not None:
        config = config.replace(mode=mode)
    if config.model_dir is None:
        raise ConfigurationError(
            "model_dir is not set: name a directory that every executor can reach, in "
            "RunConfig(model_dir=...)"
        )
    if not is_remote(config.model_dir):
        # Executors have a working directory of their own.
        config = config.replace(model_dir=os.path.abspath(config.model_dir))  # noqa: PTH100
    return config
