"""Why a run failed: told to the other tasks, and to the user in their own words."""

from __future__ import annotations

import contextlib
import gc
import re
import traceback
from collections.abc import Iterator
from functools import partial

import tensorflow as tf

from phalanx.errors import Interrupted, PeerError, PhalanxError, TrainingError, WorkerError
from phalanx.train.runtime.control_channel import ControlChannel, Message, MessageType, post
from phalanx.train.runtime.topology import Strategy, Topology

_TRACE = "Traceback (most recent call last):"
# The line that names an error and says what it is; not the one with which AutoGraph begins.
_MESSAGE = re.compile(r"^\s*([\w.]*(?:Error|Exception|Interrupt|Exit)): (?!in user code)(.+)", re.M)

_WORKER = re.compile(r"remote target /job:worker/replica:0/task:(\d+)")


@contextlib.contextmanager
def propagate_failures(topology: Topology, channel: ControlChannel) -> Iterator[None]:
    """What goes wrong here is told to the others, and what went wrong there is told here."""
    if topology.strategy is Strategy.ONE_PROCESS:
        yield
        return
    chief = topology.cluster.chief()
    others = [task for task in topology.cluster.tasks() if task != topology.task]
    tell = partial(post, topology.cluster, job_of_ps=topology.strategy.has_ps)
    me = str(topology.task)
    try:
        yield
    except Interrupted as error:
        if topology.is_chief:
            tell(others, Message(MessageType.AGAIN, me, str(error)))
        raise
    except BaseException as error:
        cause = _word_of_another(error, channel, topology)
        # What the frames still hold, a dataset that is read by Python above all, must go now: when
        # the process ends, Python is no longer there to end it.
        traceback.clear_frames(error.__traceback__)
        gc.collect()
        if topology.is_chief:
            tell(others, Message(MessageType.FAILED, me, _first_line(cause or error)))
        elif cause is None:
            tell([chief], Message(MessageType.FAILED, me, _words(error)))
        if cause is not None:
            raise cause from None
        raise
    else:
        if topology.is_chief and topology.strategy.has_ps:
            tell(others, Message(MessageType.DONE, me))


def _word_of_another(
    error: BaseException, channel: ControlChannel, topology: Topology
) -> PhalanxError | None:
    """When TensorFlow gives up because a peer is gone, that peer may have said why."""
    # That a dataset could not be made comes wrapped.
    error = getattr(error, "original_exception", error)
    if not isinstance(error, tf.errors.OpError):
        return None
    message = channel.wait(5)
    if message is not None and message.word is MessageType.FAILED:
        if topology.is_chief:
            return WorkerError(f"{message.sender} failed:\n{message.text}")
        return TrainingError(f"{message.sender} failed: {message.text}")
    if topology.is_chief and _TRACE in str(error):
        return WorkerError(f"{_find_place(error, topology)} failed:\n{own_words(error)}")
    if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return PeerError(f"a peer went away without a word: {_first_line(error)}")
    return None


def _find_place(error: BaseException, topology: Topology) -> str:
    """The worker that an error on a cluster with parameter servers came from, as far as it says."""
    workers = [task for task in topology.trainers if task != topology.task]
    found = _WORKER.findall(str(error))
    return (
        str(workers[int(found[-1])]) if topology.strategy.has_ps and found else "one of the tasks"
    )


def _first_line(error: BaseException) -> str:
    """One line, for the tasks that only need to know."""
    words = _words(error)
    if isinstance(error, PhalanxError) and _TRACE not in words:
        return words.strip().splitlines()[-1]
    said = _MESSAGE.findall(words)
    return ": ".join(said[-1]) if said else words.strip().splitlines()[-1]


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, PhalanxError) else own_words(error)


def own_words(error: BaseException) -> str:
    """The traceback of the user's mistake, without what TensorFlow wraps around it."""
    text = str(error)
    if isinstance(error, tf.errors.OpError) and _TRACE in text:
        return _TRACE + text.partition(_TRACE)[2].partition("\n\n\n")[0]
    return "".join(traceback.format_exception(error))
