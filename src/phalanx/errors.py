"""Every error that Phalanx raises on purpose.

PhalanxError                     exit code 1
├── ConfigurationError           exit code 2: the request cannot be met, and nothing was started
│   ├── ClusterError             TF_CONFIG, or another description of the cluster, is wrong
│   ├── CheckpointError          a checkpoint is damaged, or that of another model
│   ├── DataError                the data does not exist, or cannot be used as requested
│   └── JobError                 a job cannot be launched as described
│       └── ArgumentError        an argument is wrong; also a ValueError
├── RecordError                  a record is damaged or has unexpected content
├── LaunchError                  a launched job failed for a reason outside of its program
│   ├── NotFoundError            the backend has no such object
│   └── OutputGoneError          the backend has deleted the output of a task
└── TrainingError                training started and failed
    ├── WorkerError              the program raised an exception on another task
    ├── PeerError                another task is unreachable or stopped responding
    ├── DivergenceError          the loss or a variable is NaN or infinite, or the loss blows up
    ├── SaveError                a checkpoint could not be written
    ├── LeaseError               another job has taken over the model_dir
    └── Interrupted              exit code 75: stopped by SIGTERM after saving; start it again
"""

from __future__ import annotations


class PhalanxError(Exception):
    """The base class of every error that Phalanx raises on purpose."""

    exit_code = 1


class ConfigurationError(PhalanxError):
    """A setting cannot work; the message says what was found and what to do."""

    exit_code = 2


class ClusterError(ConfigurationError):
    """The description of the cluster, or of this task, is wrong."""


class CheckpointError(ConfigurationError):
    """A checkpoint is damaged or incomplete, or holds another model."""


class DataError(ConfigurationError):
    """The data does not exist, or cannot be used as requested."""


class JobError(ConfigurationError):
    """A job cannot be launched as described."""


class ArgumentError(JobError, ValueError):
    """An argument has a value that cannot work, which callers may expect as a ValueError."""


class RecordError(PhalanxError):
    """A record is damaged or has unexpected content.

    Args:
        path: The file.
        index: The record's number in the file, from 0.
        offset: Where the record begins, in bytes; in the decompressed data of a compressed file.
        reason: What is wrong with the record.
    """

    def __init__(self, path: str, index: int, offset: int, reason: str) -> None:
        super().__init__(f"{path}: record {index} at offset {offset}: {reason}")
        self.path, self.index, self.offset, self.reason = path, index, offset, reason

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, int, int, str]]:
        return type(self), (self.path, self.index, self.offset, self.reason)


class LaunchError(PhalanxError):
    """A launched job failed for a reason outside of its program."""


class NotFoundError(LaunchError):
    """The backend has no object of this kind and name."""


class OutputGoneError(LaunchError):
    """The backend has deleted the output of a task."""


class TrainingError(PhalanxError):
    """Training started and failed."""


class WorkerError(TrainingError):
    """The program raised an exception on another task; the message has that task's traceback."""


class PeerError(TrainingError):
    """Another task of the cluster is unreachable or stopped responding."""


class DivergenceError(TrainingError):
    """The loss or a variable is NaN or infinite, or the loss has blown up."""


class SaveError(TrainingError):
    """A checkpoint could not be written; the checkpoints before it are unchanged."""


class LeaseError(TrainingError):
    """Another job has taken over the model_dir, because this one seemed to be dead."""


class Interrupted(TrainingError):  # noqa: N818 - it is not an error
    """SIGTERM stopped the run after it saved a checkpoint; started again, the run resumes."""

    exit_code = 75
