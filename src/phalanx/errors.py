"""Every error Phalanx raises on purpose.

PhalanxError                     exit code 1
├── ConfigurationError           exit code 2: what was asked cannot be done, nothing was started
│   ├── ClusterError             TF_CONFIG, or what stands in for it, is wrong
│   └── JobError                 a job cannot be launched as described
└── LaunchError                  a job was launched and went wrong
"""

from __future__ import annotations


class PhalanxError(Exception):
    """The root: catch this to catch everything Phalanx raises on purpose."""

    exit_code = 1


class ConfigurationError(PhalanxError):
    """What the user set cannot work; the message says what was found and what to do."""

    exit_code = 2


class ClusterError(ConfigurationError):
    """The description of the cluster, or of this task's place in it, is wrong."""


class JobError(ConfigurationError):
    """A job cannot be launched as it is described."""


class LaunchError(PhalanxError):
    """A job was launched and went wrong for a reason that is not its program's."""
