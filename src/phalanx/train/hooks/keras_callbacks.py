"""Keras callbacks: the hook that calls them as `fit` does."""

import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from phalanx.errors import ConfigurationError, PhalanxError, TrainingError
from phalanx.train.hooks.base import Hook
from phalanx.train.loop.session import Session
from phalanx.train.types import Array, Callback, KerasVariable, Model, Optimizer
from phalanx.train.variables.host_variables import inner_optimizer

LOG = logging.getLogger("phalanx")

_BASE = keras.callbacks.Callback
_CHECKPOINTS = (
    keras.callbacks.ModelCheckpoint,
    getattr(keras.callbacks, "OrbaxCheckpoint", keras.callbacks.ModelCheckpoint),
)
_WITHOUT_WEIGHTS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TerminateOnNaN,
)
_NEED_KERAS_MODEL = (
    *_CHECKPOINTS,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
    keras.callbacks.TensorBoard,
)
# Keras calls these aliases from the default methods.
_ALIASES = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}


class CallbackHook(Hook):
    """Calls Keras callbacks, on the chief, as `fit` calls them.

        CallbackHook([keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)])

    `phalanx.run(..., callbacks=[...])` adds this hook. A callback may set `model.stop_training`,
    the learning rate, the weights and the variables of the optimizer; every replica and parameter
    server has the new values before the next step.

    Args:
        callbacks: The callbacks, a nested list of them, or a `keras.callbacks.CallbackList`.
        epochs: The number of epochs that callbacks read. By default that of the run.
        initial_epoch: The number of the first epoch, for callbacks.
        steps_per_epoch: The number of batches that callbacks read. By default, as many as the data
            has, if that is known.
        validation_freq: Evaluate every so many epochs, or after the epochs of a list, counted from
            1, if the experiment has evaluation data.
        verbose: As in `fit`: 0 for no progress bar of Keras, 1 for a bar, 2 for a line per epoch.
            By default 1 if a `ProgbarLogger` is among the callbacks, and 0 otherwise.
        model: The model that callbacks see in a loop that you write.

    Attributes:
        history: The `keras.callbacks.History` of the run.
    """

    needs_epochs = True

    def __init__(
        self,
        callbacks: Any = (),
        *,
        epochs: int | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        verbose: int | str | None = None,
        model: Model | None = None,
    ) -> None:
        found = list(_flatten(callbacks))
        self._backups = [c for c in found if isinstance(c, keras.callbacks.BackupAndRestore)]
        self.callbacks = [c for c in found if c not in self._backups]
        has_bar = any(isinstance(c, keras.callbacks.ProgbarLogger) for c in self.callbacks)
        self._verbose = int(has_bar) if verbose is None else verbose
        self.shows_epochs = self._verbose != 0
        histories = [c for c in self.callbacks if isinstance(c, keras.callbacks.History)]
        self.history = histories[-1] if histories else keras.callbacks.History()
        # In this order `fit` adds what is missing: the history, then the progress bar.
        if not histories:
            self.callbacks.append(self.history)
        if self.shows_epochs and not has_bar:
            self.callbacks.append(keras.callbacks.ProgbarLogger())
        self._epochs = epochs
        self._initial_epoch = initial_epoch
        self._steps_per_epoch = steps_per_epoch
        self._validation_freq = validation_freq
        self._given_model = model
        self._periods = [p for c in self.callbacks if (p := _batch_period(c)) is not None]
        self._save_periods = [c.save_freq for c in self._backups if c.save_freq != "epoch"]
        self._calls_every_batch = 1 in self._periods
        self.needs_evaluation_batches = any(_needs_evaluation_batches(c) for c in self.callbacks)
        self._model: Model = None
        self._optimizer: Optimizer | None = None
        self._watched: list[KerasVariable] = []
        self._is_training = False
        self._first_step = 0
        self._first_iteration = 0
        self._pulled_step: int | None = None
        self._epoch: int | None = None
        self._next_batch = 0
        self._batch_has_begun = False
        self._test_batches = 0
        self._stopped_by = ""
        self._logs: dict[str, float] = {}

    @property
    def terminates_on_nan(self) -> bool:
        """Whether a callback decides what happens when the loss is NaN."""
        return any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self.callbacks)

    def begin(self, session: Session) -> None:
        self._model = self._given_model if self._given_model is not None else session.model
        self._bind_optimizer(session)
        self._check_model()
        self._watch(session)
        self._first_step = session.step
        if self._optimizer is not None:
            self._first_iteration = int(inner_optimizer(self._optimizer).variables[0].numpy())
        self._steps_per_epoch = self._steps_per_epoch or session.steps_per_epoch
        params = {
            "verbose": self._verbose,
            "epochs": self._epochs
            or self._initial_epoch + _count_epochs(session, self._steps_per_epoch),
            "steps": self._steps_per_epoch,
        }
        if isinstance(self._model, keras.Model):
            self._model.history = self.history
        for callback in self.callbacks:
            if self._model is not None:
                callback.set_model(self._model)
            callback.set_params(params)
        for backup in self._backups:
            LOG.info(
                "BackupAndRestore: the checkpoints in %s take its place, and %s is not used",
                session.directory, backup.backup_dir,
            )  # fmt: skip
        if self._calls_every_batch:
            LOG.info(
                "%s: called for every batch, so steps run one at a time, which is slower",
                ", ".join(type(c).__name__ for c in self.callbacks if _batch_period(c) == 1),
            )
        if self._model is not None:
            self._model.stop_training = False
        self._is_training = True
        self._call(session, "on_train_begin")

    def due(self, step: int) -> int | None:
        if self._is_stopped():
            # As in `fit`, one more batch is trained.
            return step + 1
        done = step - self._first_step
        periods = [*self._periods, *self._save_periods]
        return min((step + period - done % period for period in periods), default=None)

    def before_step(self, session: Session) -> None:
        if self._epoch is None:
            # A loop that the user writes has no end of an epoch, so it is one epoch.
            self._epoch = self._initial_epoch + session.position.epoch
            self._call(session, "on_epoch_begin", self._epoch)
        if not self._batch_has_begun:
            self._next_batch = session.position.batches
            # At the end of the data, the session asks for a step that does not come.
            if not self._steps_per_epoch or self._next_batch < self._steps_per_epoch:
                self._begin_batch(session)

    def after_step(self, session: Session) -> None:
        if not self._calls_every_batch:
            self._next_batch = max(self._next_batch, session.position.batches - 1)
        # Asynchronously, a callback that reads the weights lets further steps be counted.
        while self._next_batch < session.position.batches:
            self._begin_batch(session)
            totals = session.position.totals
            self._call(session, "on_train_batch_end", self._next_batch, report=totals)
            self._batch_has_begun = False
            self._next_batch += 1
            if self._is_stopped():
                break
        self._check_stop(session)
        done = session.step - self._first_step
        if any(done % period == 0 for period in self._save_periods):
            session.save()

    def before_evaluate(self, session: Session) -> None:
        self._test_batches = 0
        if self._is_training:
            self._call(session, "on_test_begin")

    def on_evaluation_batch(self, session: Session, batches: int, report: Array) -> None:
        if self._is_training and self.needs_evaluation_batches:
            for batch in range(self._test_batches, batches):
                self._call_all(session, "on_test_batch_begin", batch)
                self._call_all(session, "on_test_batch_end", batch, report=report)
        self._test_batches = batches

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        if self._is_training:
            self._call(session, "on_test_end", logs=values)

    def on_epoch(self, session: Session, values: Mapping[str, float]) -> None:
        self._end_epoch(session, values)
        if any(backup.save_freq == "epoch" for backup in self._backups):
            session.save()

    def on_rollback(self, session: Session) -> None:
        self._pulled_step = None

    def on_stop(self, session: Session) -> None:
        # As in `fit`, an epoch that ends early ends like any other.
        is_cut = self._epoch is not None and len(session.position.totals)
        if is_cut and not session.is_interrupted:
            self._end_epoch(session, session.read_values(session.position.totals))

    def end(self, session: Session) -> None:
        # After SIGTERM the run continues when it is started again.
        if not session.is_interrupted:
            self._pulled_step = None
            self._call(session, "on_train_end", logs=self._logs)
            self._is_training = False

    def _begin_batch(self, session: Session) -> None:
        if not self._batch_has_begun:
            self._batch_has_begun = True
            self._call(session, "on_train_batch_begin", self._next_batch)

    def _end_epoch(self, session: Session, values: Mapping[str, float]) -> None:
        if self._epoch is None:
            return
        self._logs = dict(values)
        if session.can_evaluate and self._validates(self._epoch):
            if session.evaluated_step != session.step:
                session.evaluate()
            self._logs |= {f"val_{name}": value for name, value in session.evaluation.items()}
        self._call(session, "on_epoch_end", self._epoch, logs=self._logs)
        self._epoch = None
        self._batch_has_begun = False
        self._check_stop(session)

    def _validates(self, epoch: int) -> bool:
        frequency = self._validation_freq
        if isinstance(frequency, Sequence):
            return epoch + 1 in frequency
        return (epoch + 1) % frequency == 0

    def _is_stopped(self) -> bool:
        return bool(getattr(self._model, "stop_training", False))

    def _check_stop(self, session: Session) -> None:
        if self._is_stopped():
            session.request_stop(f"{self._stopped_by or 'the program'} set model.stop_training")

    def _call(
        self,
        session: Session,
        method: str,
        *number: int,
        logs: Mapping[str, float] | None = None,
        report: Array | None = None,
    ) -> None:
        """Call a method of all callbacks, and send what they changed to the devices."""
        listeners = [c for c in self.callbacks if _listens(c, method)]
        if not listeners:
            return
        may_change = any(_needs_weights(c, method) for c in listeners)
        self._update_host(session, may_change)
        weights = [_copy(v) for v in self._watched] if may_change else []
        rate = self._read_learning_rate()
        self._call_all(session, method, *number, logs=logs, report=report)
        new_rate = self._read_learning_rate()
        rate_changed = new_rate != rate
        weights_changed = any(
            not np.array_equal(before, _copy(variable))
            for before, variable in zip(weights, self._watched, strict=False)
        )
        if session.experiment is None:
            if rate_changed or weights_changed:
                session.pull()
                session.push()
            return
        if rate_changed and new_rate is not None:
            session.learning_rate = new_rate
        if weights_changed:
            session.push()

    def _call_all(
        self,
        session: Session,
        method: str,
        *number: int,
        logs: Mapping[str, float] | None = None,
        report: Array | None = None,
    ) -> None:
        values = logs if report is None else session.read_values(report)
        # As in Keras, all callbacks share one dict, and may add to it.
        shared = dict(sorted((values or {}).items()))
        for callback in self.callbacks:
            if not _listens(callback, method):
                continue
            was_stopped = self._is_stopped()
            name = type(callback).__name__
            try:
                if method.endswith(("batch_begin", "batch_end")):
                    getattr(callback, method)(*number, logs=shared)
                else:
                    getattr(callback, method)(*number, shared)
            except PhalanxError:
                raise
            except Exception as error:
                trace = "".join(traceback.format_exception(error))
                raise TrainingError(
                    f"{name}.{method} raised {type(error).__name__}: {error}\n{trace}"
                ) from error
            if self._is_stopped() and not was_stopped:
                self._stopped_by = name

    def _update_host(self, session: Session, needs_weights: bool) -> None:
        """Give the host variables that callbacks may read the values of the current step.

        The model of a custom loop has the trained variables themselves.
        """
        if session.experiment is None:
            return
        if needs_weights:
            if self._pulled_step != session.step:
                session.pull()
                self._pulled_step = session.step
        elif self._optimizer is not None and not session.updates_in_place:
            # A learning rate schedule, and the summaries of TensorBoard, depend on this number.
            iteration = self._first_iteration + session.step - self._first_step
            # With gradient accumulation, `optimizer.iterations` is computed from this variable.
            inner_optimizer(self._optimizer).variables[0].assign(iteration)

    def _bind_optimizer(self, session: Session) -> None:
        """Let callbacks find the optimizer that trains, if the model was not compiled with it."""
        self._optimizer = session.optimizer
        if self._optimizer is None:
            self._optimizer = getattr(self._model, "optimizer", None)
        elif isinstance(self._model, keras.Model) and not any(
            value is self._optimizer for value in vars(self._model).values()
        ):
            # Not tracked: checkpoints contain the optimizer under a name of its own.
            self._model.__dict__["optimizer"] = self._optimizer

    def _check_model(self) -> None:
        for callback in self.callbacks:
            needs_model = isinstance(callback, _NEED_KERAS_MODEL) or getattr(
                callback, "restore_best_weights", False
            )
            if needs_model and not isinstance(self._model, keras.Model):
                found = "none" if self._model is None else f"a {type(self._model).__name__}"
                raise ConfigurationError(
                    f"{type(callback).__name__} needs a keras.Model, but the model is {found}: "
                    "train a keras.Model, or use a hook. In a DistributedSession, set session.model"
                )

    def _watch(self, session: Session) -> None:
        """List the variables that callbacks may change, except the learning rate."""
        if session.experiment is not None:
            model_variables = list(session.variables.values())
        else:
            model_variables = list(getattr(self._model, "weights", []))
        optimizers = session.optimizers or [self._optimizer]
        optimizer_variables = [v for o in optimizers for v in getattr(o, "variables", [])]
        rate = getattr(self._optimizer, "learning_rate", None)
        self._watched = [*model_variables, *(v for v in optimizer_variables if v is not rate)]

    def _read_learning_rate(self) -> float | None:
        rate = getattr(self._optimizer, "learning_rate", None)
        return None if rate is None else float(np.asarray(rate))


def _flatten(callbacks: Any) -> Iterable[Callback]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    if callbacks is None:
        return
    if not isinstance(callbacks, Iterable):
        callbacks = [callbacks]
    for callback in callbacks:
        if isinstance(callback, list | tuple):
            yield from _flatten(callback)
        elif isinstance(callback, _BASE):
            yield callback
        else:
            hint = ": create one" if isinstance(callback, type) else ""
            raise ConfigurationError(
                f"callbacks contains {callback!r}, which is no keras.callbacks.Callback{hint}"
            )


def _count_epochs(session: Session, steps_per_epoch: int | None) -> int:
    """Return the number of the last epoch, as far as it is known."""
    counts = [session.epochs] if session.epochs else []
    if session.limit and steps_per_epoch:
        counts.append(-(-session.limit // steps_per_epoch))
    return min(counts, default=1)


def _listens(callback: Callback, method: str) -> bool:
    """Whether a callback does something when a method is called."""
    names = [method, _ALIASES[method]] if method in _ALIASES else [method]
    return any(
        name in vars(callback) or getattr(type(callback), name) is not getattr(_BASE, name)
        for name in names
    )


def _batch_period(callback: Callback) -> int | None:
    """Return after how many batches a callback must be called; None if any number will do."""
    if not (_listens(callback, "on_train_batch_begin") or _listens(callback, "on_train_batch_end")):
        return None
    kind = type(callback)
    if kind in _WITHOUT_WEIGHTS:
        return None
    if kind in _CHECKPOINTS:
        return None if callback.save_freq == "epoch" else int(callback.save_freq)
    if kind is keras.callbacks.TensorBoard:
        # Keras does not keep the argument `profile_batch`.
        return 1 if callback.update_freq != "epoch" or callback._should_trace else None
    return 1


def _needs_evaluation_batches(callback: Callback) -> bool:
    if type(callback) is keras.callbacks.ProgbarLogger:
        return False
    if type(callback) is keras.callbacks.TensorBoard:
        return bool(callback.update_freq != "epoch")
    return _listens(callback, "on_test_batch_begin") or _listens(callback, "on_test_batch_end")


def _needs_weights(callback: Callback, method: str) -> bool:
    """Whether a method may read or change the weights: False only for what is known of Keras."""
    kind = type(callback)
    if kind in _WITHOUT_WEIGHTS:
        return False
    if kind is keras.callbacks.EarlyStopping:
        return bool(callback.restore_best_weights)
    if kind in _CHECKPOINTS:
        is_batch = callback.save_freq != "epoch"
        return method == ("on_train_batch_end" if is_batch else "on_epoch_end")
    if kind is keras.callbacks.TensorBoard:
        shows_weights = callback.histogram_freq or callback.embeddings_freq
        return method == "on_epoch_end" and bool(shows_weights)
    return True


def _copy(variable: KerasVariable) -> Array:
    return np.array(variable.numpy())
