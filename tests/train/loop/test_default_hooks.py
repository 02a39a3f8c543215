"""The hooks that a run has by default."""

import pytest

import phalanx
from phalanx import hooks
from phalanx.train.loop.default_hooks import default_hooks


@pytest.mark.parametrize(("verbose", "logs"), [(0, True), (1, False), (2, False)])
def test_progress_bar_of_keras_takes_the_place_of_logged_lines(verbose: int, logs: bool) -> None:
    speed = hooks.ExamplesPerSecondHook(hooks.Every(steps=10))
    callbacks = [hooks.CallbackHook([], verbose=verbose)]
    found = default_hooks(phalanx.RunConfig(train_steps=10), speed, False, callbacks)
    assert any(isinstance(hook, hooks.LoggingHook) for hook in found) == logs
    assert speed.logs == logs
    assert speed in found
