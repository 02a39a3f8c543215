"""Spark's `BarrierTaskContext` in the process of a task, which is not the Python worker of Spark.

Functions ask it for the number of their task and for the addresses of all tasks, and wait for each
other with its barriers. The context talks to Spark through a local socket, which any process of the
same user on this machine can use.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext


def describe_context(context: BarrierTaskContext) -> str:
    """Return the context as JSON, in the form that PySpark itself reads."""
    resources = {
        name: {"name": each.name, "addresses": each.addresses}
        for name, each in context.resources().items()
    }
    return json.dumps(
        {
            "stageId": context.stageId(),
            "partitionId": context.partitionId(),
            "attemptNumber": context.attemptNumber(),
            "taskAttemptId": context.taskAttemptId(),
            "cpus": context.cpus(),
            "resources": resources,
            "localProperties": context._localProperties,
            "connInfo": context._conn_info,
            "secret": context._secret,
        }
    )


def restore_context(description: str) -> None:
    """Let `BarrierTaskContext.get()` return this context; without a description, do nothing."""
    if description:
        from pyspark import BarrierTaskContext  # noqa: PLC0415

        BarrierTaskContext.from_json(json.loads(description))
