"""tf.train, with the names whose behaviour on clusters Phalanx improves."""

import inspect
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.lost_peers import LostPeerHook
from phalanx.compat.tf1.session import (
    RECOVERY_SECONDS,
    WorkerSessionCreator,
    limit_waits,
    open_session,
)
from phalanx.compat.tf1.sync_replicas import SyncReplicasOptimizer

__all__ = ["MonitoredTrainingSession", "Supervisor", "SyncReplicasOptimizer"]

_ARGUMENTS = inspect.signature(tf.train.MonitoredTrainingSession)


def MonitoredTrainingSession(*args: Any, **kwargs: Any) -> Any:  # noqa: N802 - TensorFlow's name
    """Return TensorFlow's session of this name; a worker's starts as soon as the chief's has.

    Args:
        *args: As in TensorFlow.
        **kwargs: As in TensorFlow.
    """
    given = _ARGUMENTS.bind(*args, **kwargs)
    given.apply_defaults()
    values = given.arguments
    if values["is_chief"]:
        values["config"] = limit_waits(values["master"], values["config"])
        values["hooks"] = [LostPeerHook(), *(values["hooks"] or ())]
        return tf.train.MonitoredTrainingSession(*given.args, **given.kwargs)
    creator = WorkerSessionCreator(
        values["scaffold"] or tf.train.Scaffold(),
        values["master"],
        values["config"],
        values["max_wait_secs"],
    )
    return open_session(creator, values["hooks"] or (), values["stop_grace_period_secs"])


class Supervisor(tf.train.Supervisor):
    """TensorFlow's Supervisor; a worker's session starts as soon as the chief's has.

    Args:
        *args: As in TensorFlow.
        recovery_wait_secs: How often a worker asks whether the variables are initialized.
        **kwargs: As in TensorFlow.
    """

    def __init__(
        self, *args: Any, recovery_wait_secs: float = RECOVERY_SECONDS, **kwargs: Any
    ) -> None:
        super().__init__(*args, recovery_wait_secs=recovery_wait_secs, **kwargs)

    def prepare_or_wait_for_session(
        self, master: str = "", config: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return a session, in which no run waits for its peers for ever.

        Args:
            master: The target of the session.
            config: The `tf.ConfigProto` of the session.
            *args: As in TensorFlow.
            **kwargs: As in TensorFlow.
        """
        return super().prepare_or_wait_for_session(
            master, limit_waits(master, config), *args, **kwargs
        )


def __getattr__(name: str) -> Any:
    return getattr(tf.train, name)


def __dir__() -> list[str]:
    return sorted({*dir(tf.train), *__all__})
