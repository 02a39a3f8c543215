"""Propagation of failures: each task learns why the run failed, and shows the user's own error."""

import contextlib
import gc
import re
import traceback
from collections.abc import Iterator
from functools import partial

import tensorflow as tf

from phalanx.cluster.job_environment import will_be_restarted
from phalanx.errors import Interrupted, PeerError, PhalanxError, TrainingError, WorkerError
from phalanx.train.runtime.control_channel import ControlChannel, send
from phalanx.train.runtime.messages import Message, MessageType
from phalanx.train.runtime.topology import Strategy, Topology

_TRACE = "Traceback (most recent call last):"
# The line of a traceback that names the error, but not the one that AutoGraph puts first.
_ERROR_LINE = re.compile(
    r"^\s*([\w.]*(?:Error|Exception|Interrupt|Exit)): (?!in user code)(.+)", re.M
)
_WORKER = re.compile(r"remote target /job:worker/replica:0/task:(\d+)")


@contextlib.contextmanager
def propagate_failures(
    topology: Topology, channel: ControlChannel, releases: bool = True
) -> Iterator[None]:
    """Send a failure of this task to the others, and raise the failure of another task here.

    At the end the chief releases its parameter servers and their workers, if `releases` is set.
    """
    if topology.strategy is Strategy.ONE_PROCESS:
        yield
        return
    chief = topology.cluster.chief()
    others = [task for task in topology.cluster.tasks() if task != topology.task]
    send_to = partial(send, topology.cluster, has_ps=topology.strategy.has_ps)
    sender = str(topology.task)
    try:
        yield
    except Interrupted as error:
        if topology.is_chief:
            send_to(others, Message(MessageType.INTERRUPTED, sender, str(error)))
        raise
    except BaseException as error:
        cause = _find_cause(error, channel, topology)
        # Release what the frames hold, above all datasets that call Python: at exit, Python is
        # gone before TensorFlow closes them.
        traceback.clear_frames(error.__traceback__)
        gc.collect()
        if topology.is_chief and not _is_restarted_alone(cause or error, topology):
            send_to(others, Message(MessageType.FAILED, sender, _summarize(cause or error)))
        elif cause is None:
            send_to([chief], Message(MessageType.FAILED, sender, _describe(error)))
        if cause is not None:
            raise cause from None
        raise
    else:
        if releases and topology.is_chief and topology.strategy.has_ps:
            send_to(others, Message(MessageType.DONE, sender))


def _is_restarted_alone(cause: BaseException, topology: Topology) -> bool:
    """Whether a launcher starts the chief again, while its servers wait for it.

    A chief that has lost a parameter server, or a worker of a synchronous step, must begin again
    with the last checkpoint, on servers that may stay.
    """
    return will_be_restarted() and topology.strategy.has_ps and isinstance(cause, PeerError)


def _find_cause(
    error: BaseException, channel: ControlChannel, topology: Topology
) -> PhalanxError | None:
    """Return the failure of another task that made TensorFlow fail here, if there is one."""
    # ClusterCoordinator wraps the errors of making a dataset.
    error = getattr(error, "original_exception", error)
    if not isinstance(error, tf.errors.OpError):
        return None
    message = channel.wait(5)
    if message is not None and message.type is MessageType.FAILED:
        if topology.is_chief:
            return WorkerError(f"{message.sender} failed:\n{message.text}")
        return TrainingError(f"{message.sender} failed: {message.text}")
    if topology.is_chief and _TRACE in str(error):
        return WorkerError(f"{_find_worker(error, topology)} failed:\n{user_traceback(error)}")
    if _is_late_exchange(error, topology):
        return PeerError(
            "an exchange with the other trainers took longer than collective_seconds: a peer has "
            "stopped or is slow, or the chief evaluated or saved for longer; raise the limit if so"
        )
    if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return PeerError(f"a peer stopped responding: {_summarize(error)}")
    return None


def _is_late_exchange(error: tf.errors.OpError, topology: Topology) -> bool:
    is_late = isinstance(error, tf.errors.DeadlineExceededError)
    return is_late and topology.strategy is Strategy.ALL_REDUCE


def _find_worker(error: BaseException, topology: Topology) -> str:
    """Return the worker of a ps cluster that an error comes from, if the error says so."""
    workers = [task for task in topology.trainers if task != topology.task]
    found = _WORKER.findall(str(error))
    if topology.strategy.has_ps and found:
        return str(workers[int(found[-1])])
    return "one of the tasks"


def _summarize(error: BaseException) -> str:
    """Describe an error in one line."""
    text = _describe(error)
    if isinstance(error, PhalanxError) and _TRACE not in text:
        return text.strip().splitlines()[-1]
    if isinstance(error, PhalanxError) and not (first := text.splitlines()[0]).endswith(":"):
        return first
    found = _ERROR_LINE.findall(text)
    return ": ".join(found[-1]) if found else text.strip().splitlines()[-1]


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, PhalanxError) else user_traceback(error)


def user_traceback(error: BaseException) -> str:
    """Return the traceback of the user's error, without what TensorFlow wraps around it."""
    text = str(error)
    if isinstance(error, tf.errors.OpError) and _TRACE in text:
        return _TRACE + text.partition(_TRACE)[2].partition("\n\n\n")[0]
    return "".join(traceback.format_exception(error))
