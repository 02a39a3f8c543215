"""The Ray launcher: every task is an actor, and one more looks after them."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.errors import ConfigurationError, JobError, LaunchError
from phalanx.launch.backends.ray.job_actor import JobActor
from phalanx.launch.backends.ray.plan import RayOptions, RayPlan, actor_name, plan_actors
from phalanx.launch.base import JobResult, TaskStatus, poll
from phalanx.launch.job import Job

_NAMESPACE = "phalanx"
_ANSWER_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RayLauncher:
    """Starts a job's actors on the cluster at `address`: `ray://host:port`, `host:port`, or None.

    None is the cluster of RAY_ADDRESS or the one that this machine belongs to.
    """

    place: RayOptions
    address: str | None = None

    def plan(self, job: Job) -> RayPlan:
        """The placement group, and what is run in it."""
        return plan_actors(job, self.place)

    def submit(self, plan: RayPlan) -> RayHandle:
        """Make the actor that does the rest, if there is room for the job and its name is free."""
        address = _connect(self.address)
        handle = RayHandle(plan.job.name, address)
        if handle.wait(0) is None:
            raise JobError(
                f"nothing was submitted: the cluster has a job {plan.job.name!r} already; "
                "choose another --name, or end that one with phalanx cancel"
            )
        handle.forget()
        job = _make_job_actor(plan)
        try:
            problem = _answer(job.start.remote())
            if problem:
                raise JobError(f"nothing was submitted: Ray would never start it: {problem}")
        except BaseException:
            _kill(job)
            raise
        return handle

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> RayHandle:
        """The job of this name in its cluster."""
        _connect(facts["address"])
        return RayHandle(facts["name"], facts["address"])


class RayHandle:
    """A job whose actor Ray knows by name."""

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._address = address

    def facts(self) -> dict[str, Any]:
        """Name and cluster."""
        return {"name": self._name, "address": self._address}

    def status(self) -> list[TaskStatus]:
        """Every task as the job's actor last saw it."""
        job = self._actor()
        if job is None:
            raise LaunchError(f"the cluster no longer has the actor of the job {self._name!r}")
        return [TaskStatus.load(entry) for entry in _answer(job.state.remote())["tasks"]]

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        """The task's output so far; with `follow`, until the job is over."""
        job = self._actor()
        place, partial = 0, b""
        while job is not None:
            printed, is_all = _answer(job.read.remote(str(task), place))
            place += len(printed)
            *lines, partial = (partial + printed).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if is_all or not (printed or follow):
                break
            if not printed:
                time.sleep(_POLL_SECONDS)
        if partial:
            yield partial.decode(errors="replace")

    def cancel(self) -> None:
        """Ask the job to end; of one that is over, nothing is kept."""
        job = self._actor()
        if job is None:
            return
        if self.wait(0) is not None:
            self.forget()
        else:
            _answer(job.cancel.remote())

    def forget(self) -> None:
        """Remove the actor of a job that is over."""
        job = self._actor()
        if job is not None:
            _kill(job)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """How the job ended; None if it goes on after `timeout` seconds."""
        return poll(self._result, timeout, _POLL_SECONDS)

    def _result(self) -> JobResult | None:
        job = self._actor()
        if job is None:
            return JobResult(1, "its actor is no longer there, and its tasks ended with it")
        result = _answer(job.state.remote())["result"]
        return None if result is None else JobResult.load(result)

    def _actor(self) -> Any:
        """The job's actor, if it is there."""
        import ray  # noqa: PLC0415

        try:
            return ray.get_actor(actor_name(self._name), namespace=_NAMESPACE)
        except ValueError:
            return None


def _connect(address: str | None) -> str:
    """Join the cluster, unless this process has, and say by which address it is found again."""
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
                f"no Ray cluster can be joined ({reason}): start one with ray start --head, "
                "or name yours with RAY_ADDRESS or --address"
            ) from None
    if address and address.startswith("ray://"):
        return address
    found: str = ray.get_runtime_context().gcs_address
    return found


def _check_address(address: str) -> None:
    """Ray itself tries for minutes to reach a host that does not answer."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _make_job_actor(plan: RayPlan) -> Any:
    """Classes are sent along by value: the nodes need Ray, and nothing of ours."""
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


def _answer(reference: Any) -> Any:
    """What an actor answers, within a limit."""
    import ray  # noqa: PLC0415
    from ray.exceptions import GetTimeoutError, RayError  # noqa: PLC0415

    try:
        return ray.get(reference, timeout=_ANSWER_SECONDS)
    except GetTimeoutError:
        raise LaunchError(f"Ray gave no answer within {_ANSWER_SECONDS:.0f} s") from None
    except RayError as error:
        raise LaunchError(f"Ray says: {str(error).strip().splitlines()[-1]}") from None


def _kill(job: Any) -> None:
    import ray  # noqa: PLC0415

    ray.kill(job)
