"""tf.data service beside a job: how its tasks are started, and what the others are told of it."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.job_environment import DATA_SERVICE_VARIABLE
from phalanx.cluster.spec import Role, Task

DISPATCHER = Task(Role.DISPATCHER)


def service_command(task: Task, addresses: Mapping[Task, str], python: str) -> list[str]:
    """What a dispatcher or data worker is started with.

    >>> addresses = {DISPATCHER: "a:5050", Task(Role.DATA_WORKER): "b:5050"}
    >>> print(*service_command(Task(Role.DATA_WORKER), addresses, "python"))
    python -m phalanx data-service worker a:5050 --host=b --port=5050
    """
    host, _, port = addresses[task].rpartition(":")
    start = [python, "-m", "phalanx", "data-service"]
    if task.role is Role.DISPATCHER:
        return [*start, "dispatcher", f"--port={port}"]
    return [*start, "worker", addresses[DISPATCHER], f"--host={host}", f"--port={port}"]


def service_variables(addresses: Mapping[Task, str]) -> dict[str, str]:
    """What the other tasks are told: where the dispatcher is, if there is one."""
    return {DATA_SERVICE_VARIABLE: addresses[DISPATCHER]} if DISPATCHER in addresses else {}
