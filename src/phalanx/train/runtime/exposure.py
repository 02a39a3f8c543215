"""Warns when a task can be reached by others than the tasks of its job, or refuses to start it."""

import logging
import os

from phalanx.cluster import job_secret
from phalanx.guard.exposure import describe_exposure

LOG = logging.getLogger("phalanx")


def check_guard() -> None:
    """Log that this process has no guard; an error if the user requires one.

    Call it before a server of TensorFlow starts.
    """
    if warning := describe_exposure(os.environ):
        LOG.warning(warning)


def check_secret(secret: bytes | None) -> None:
    """Log that the messages of this process are not authenticated."""
    if secret is None:
        LOG.warning(
            "messages between the tasks are not authenticated: set the same %s in all tasks, or %s "
            "(see SECURITY.md)",
            job_secret.VARIABLE,
            job_secret.FILE_VARIABLE,
        )
