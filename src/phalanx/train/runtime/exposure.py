"""Warns when a task can be reached by others than the tasks of its job."""

import logging
import os

from phalanx.cluster import job_secret
from phalanx.guard.library import is_active, is_off

LOG = logging.getLogger("phalanx")


def warn_if_exposed(secret: bytes | None) -> None:
    """Log what is missing in a program that was not started by a launcher."""
    if not is_active() and not is_off(os.environ):
        LOG.warning(
            "every host of the network can connect to TensorFlow's server in this process, and run "
            "what it likes: start the program with `phalanx guard -- python ...` (see SECURITY.md)"
        )
    if secret is None:
        LOG.warning(
            "messages between the tasks are not authenticated: set the same %s in all tasks, or %s "
            "(see SECURITY.md)",
            job_secret.VARIABLE,
            job_secret.FILE_VARIABLE,
        )
