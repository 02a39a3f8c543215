"""The settings of all-reduce."""

from __future__ import annotations

import pytest
import tensorflow as tf

from phalanx import RunConfig
from phalanx.errors import ConfigurationError
from phalanx.train.engines.communication import Communication


def test_gradients_travel_in_packs_of_about_the_given_size() -> None:
    communication = Communication(bytes_per_pack=100)
    assert communication.split([40, 40, 40, 200, 10]) == [slice(0, 3), slice(3, 4), slice(4, 5)]
    assert communication.split([]) == []


def test_all_gradients_travel_together_by_default() -> None:
    assert Communication().split([40, 40, 2**30]) == [slice(0, 3)]


def test_settings_become_options_of_collective_operations() -> None:
    config = RunConfig(communication="ring", collective_seconds=30)
    options = Communication.of_config(config, 1).options
    assert options.implementation == tf.distribute.experimental.CommunicationImplementation.RING
    assert options.timeout_seconds == 30


def test_nccl_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no GPU that TensorFlow can use: take 'ring'"):
        Communication.of_config(RunConfig(communication="nccl"), 1)
