"""The Ray backend: an actor for each task, and one that supervises them."""

import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from phalanx.cluster.spec import Task
from phalanx.errors import ConfigurationError, JobError, LaunchError
from phalanx.launch.backends.ray.job_actor import JobActor
from phalanx.launch.backends.ray.plan import (
    PlacementStrategy,
    RayObject,
    RayOptions,
    RayPlan,
    actor_name,
)
from phalanx.launch.base import Facts, JobResult, TaskStatus, poll
from phalanx.launch.job import Job
from phalanx.launch.options import GRACE, NO_ELASTIC, PROCESSES, Choice, Option, OptionValues
from phalanx.launch.termination import GracePeriods

_NAMESPACE = "phalanx"
_RESPONSE_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.5


class RayHandle:
    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._address = address

    def facts(self) -> Facts:
        return {"name": self._name, "address": self._address}

    def status(self) -> list[TaskStatus]:
        job = self._actor()
        if job is None:
            raise LaunchError(f"the cluster no longer has the actor of the job {self._name!r}")
        return [TaskStatus.load(entry) for entry in _get(job.state.remote())["tasks"]]

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        job = self._actor()
        offset, partial = 0, b""
        while job is not None:
            output, is_complete = _get(job.read.remote(str(task), offset))
            offset += len(output)
            *lines, partial = (partial + output).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if is_complete or not (output or follow):
                break
            if not output:
                time.sleep(_POLL_SECONDS)
        if partial:
            yield partial.decode(errors="replace")

    def cancel(self) -> None:
        """End the job, or remove the actor of a job that is over."""
        job = self._actor()
        if job is None:
            return
        if self.wait(0) is not None:
            self.forget()
        else:
            _get(job.cancel.remote())

    def forget(self) -> None:
        """Remove the actor of a job that is over."""
        job = self._actor()
        if job is not None:
            _kill(job)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        return poll(self._result, timeout, _POLL_SECONDS)

    def _result(self) -> JobResult | None:
        job = self._actor()
        if job is None:
            return JobResult(1, "its actor no longer exists, and its tasks ended with it")
        result = _get(job.state.remote())["result"]
        return None if result is None else JobResult.load(result)

    def _actor(self) -> RayObject | None:
        import ray  # noqa: PLC0415

        try:
            return ray.get_actor(actor_name(self._name), namespace=_NAMESPACE)
        except ValueError:
            return None


@dataclass(frozen=True)
class RayLauncher:
    """Starts the actors of a job on the cluster at `address`: `ray://host:port` or `host:port`.

    None means the cluster of RAY_ADDRESS or the one that this machine belongs to.
    """

    options: RayOptions
    address: str | None = None

    launch_help: ClassVar[str] = """
        Start the tasks of a job as actors in one placement group of a Ray cluster.

        Each actor runs PROGRAM as a process of its node, in a directory that all nodes have. A task
        without --cpus gets one processor. Needs the extra phalanx[ray]; the nodes need Ray and
        whatever PROGRAM imports.

        Example:
          phalanx launch ray --workers 4 --ps 2 --cpus 4 --gpus chief=1 --gpus worker=1 \\
              --strategy spread --directory /shared/digits train.py --rate 0.1
    """
    launch_options: ClassVar[tuple[Option, ...]] = (
        *PROCESSES,
        *NO_ELASTIC,
        Option(
            "--address",
            "ray://host:10001 or host:6379  [default: RAY_ADDRESS, or the cluster of this machine]",
            metavar="ADDRESS",
        ),
        Option(
            "--directory",
            "Where the program runs on every node  [default: the path of this directory]",
            metavar="DIR",
        ),
        Option("--python", "The Python of the nodes  [default: the one that runs Ray]"),
        Option(
            "--strategy",
            "How the tasks are distributed over the nodes.",
            Choice(tuple(each.value for each in PlacementStrategy)),
            default=RayOptions.strategy.value,
        ),
        Option(
            "--autoscaling",
            "Wait for new nodes if the job is too large for the cluster.",
            is_flag=True,
        ),
        GRACE,
    )

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        options = RayOptions(
            directory=values["directory"] or str(Path.cwd()),
            python=values["python"] or RayOptions.python,
            strategy=PlacementStrategy(values["strategy"]),
            autoscaling=values["autoscaling"],
            grace_periods=GracePeriods(grace=values["grace"]),
        )
        return cls(options, values["address"])

    def plan(self, job: Job) -> RayPlan:
        job.validate()
        return RayPlan(job, self.options)

    def submit(self, plan: RayPlan) -> RayHandle:
        address = _connect(self.address)
        handle = RayHandle(plan.job.name, address)
        if handle.wait(0) is None:
            raise JobError(
                f"nothing was submitted: the cluster has a job {plan.job.name!r} already; "
                "choose another --name, or end it with phalanx cancel"
            )
        handle.forget()
        job = _make_job_actor(plan)
        try:
            problem = _get(job.start.remote())
            if problem:
                raise JobError(f"nothing was submitted: Ray could never start the job: {problem}")
        except BaseException:
            _kill(job)
            raise
        return handle

    @classmethod
    def attach(cls, facts: Facts) -> RayHandle:
        _connect(facts["address"])
        return RayHandle(facts["name"], facts["address"])


def _connect(address: str | None) -> str:
    """Connect to the cluster, unless this process is connected, and return its address."""
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError("Ray is not installed: pip install 'phalanx[ray]'") from None
    if not ray.is_initialized():
        try:
            _check_address(address or os.environ.get("RAY_ADDRESS", ""))
            ray.init(
                address=address or "auto",
                namespace=_NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise JobError(
                f"cannot connect to a Ray cluster ({reason}): start one with ray start --head, "
                "or name yours with RAY_ADDRESS or --address"
            ) from None
    if address and address.startswith("ray://"):
        return address
    found: str = ray.get_runtime_context().gcs_address
    return found


def _check_address(address: str) -> None:
    """Fail at once if nothing listens at the address; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _make_job_actor(plan: RayPlan) -> RayObject:
    """Create the actor with classes pickled by value, so that the nodes need no Phalanx."""
    import ray  # noqa: PLC0415

    import phalanx  # noqa: PLC0415

    ray.cloudpickle.register_pickle_by_value(phalanx)
    try:
        options = {
            "name": actor_name(plan.job.name),
            "namespace": _NAMESPACE,
            "lifetime": "detached",
        }
        return ray.remote(JobActor).options(**options, num_cpus=0).remote(plan)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(phalanx)


def _get(reference: RayObject) -> Any:
    import ray  # noqa: PLC0415
    from ray.exceptions import GetTimeoutError, RayError  # noqa: PLC0415

    try:
        return ray.get(reference, timeout=_RESPONSE_SECONDS)
    except GetTimeoutError:
        raise LaunchError(f"Ray did not respond within {_RESPONSE_SECONDS:.0f} s") from None
    except RayError as error:
        raise LaunchError(f"Ray reports: {str(error).strip().splitlines()[-1]}") from None


def _kill(job: RayObject) -> None:
    import ray  # noqa: PLC0415

    ray.kill(job)
