"""Every error Phalanx raises on purpose.

PhalanxError                     exit code 1
├── ConfigurationError           exit code 2: what was asked cannot be done, nothing was started
│   ├── ClusterError             TF_CONFIG, or what stands in for it, is wrong
│   └── JobError                 a job cannot be launched as described
├── LaunchError                  a job was launched and went wrong
└── TrainingError                training began and went wrong
    ├── DataError                the data ended, or there was none
    ├── WorkerError              the program raised on another task: its own words
    ├── PeerError                another task could not be reached, or went away
    └── Interrupted              exit code 75: saved on SIGTERM, run me again
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


class TrainingError(PhalanxError):
    """Training began and went wrong."""


class DataError(TrainingError):
    """The data ended too early, or there was none."""


class WorkerError(TrainingError):
    """The program raised on another task; the message has that task's own traceback."""


class PeerError(TrainingError):
    """Another task of the cluster could not be reached, or went away."""


class Interrupted(TrainingError):  # noqa: N818 - it is not an error
    """The run was asked to stop (SIGTERM) and saved first: started again, it goes on from there."""

    exit_code = 75
