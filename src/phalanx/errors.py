"""Every error Phalanx raises on purpose.

PhalanxError                     exit code 1
├── ConfigurationError           exit code 2: what was asked cannot be done, nothing was started
│   ├── ClusterError             TF_CONFIG, or what stands in for it, is wrong
│   ├── DataError                data asked for is not there, or cannot be used so
│   └── JobError                 a job cannot be launched as described
├── RecordError                  a file of records is damaged, or a record is not what it should be
├── LaunchError                  a job was launched and went wrong
│   └── NotFoundError            the backend has no such object
└── TrainingError                training began and went wrong
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


class DataError(ConfigurationError):
    """The data that was asked for is not there, or cannot be used in the way asked for."""


class JobError(ConfigurationError):
    """A job cannot be launched as it is described."""


class RecordError(PhalanxError):
    """A record is damaged, or is not what it should be; says in which file and where.

    `index` counts the file's records from 0; `offset` is in bytes, in the unpacked data if the file
    is compressed.
    """

    def __init__(self, path: str, index: int, offset: int, reason: str) -> None:
        super().__init__(f"{path}: record {index} at offset {offset}: {reason}")
        self.path, self.index, self.offset, self.reason = path, index, offset, reason

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, int, int, str]]:
        return type(self), (self.path, self.index, self.offset, self.reason)


class LaunchError(PhalanxError):
    """A job was launched and went wrong for a reason that is not its program's."""


class NotFoundError(LaunchError):
    """The backend has no object of this kind and name."""


class TrainingError(PhalanxError):
    """Training began and went wrong."""


class WorkerError(TrainingError):
    """The program raised on another task; the message has that task's own traceback."""


class PeerError(TrainingError):
    """Another task of the cluster could not be reached, or went away."""


class Interrupted(TrainingError):  # noqa: N818 - it is not an error
    """The run was asked to stop (SIGTERM) and saved first: started again, it goes on from there."""

    exit_code = 75
