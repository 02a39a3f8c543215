"""The detector of TF_CONFIG."""

from __future__ import annotations

from phalanx import Cluster, Role, Task, TFConfig
from phalanx.cluster.detectors.tf_config_variable import detect


def test_tf_config_is_read_from_the_environment() -> None:
    cluster = Cluster.of(workers=["a:1", "b:1"], ps=["c:1"])
    expected = TFConfig(cluster, Task(Role.PS), model_dir="d")
    assert detect({"TF_CONFIG": expected.dumps()}, []) == expected


def test_empty_tf_config_counts_as_unset() -> None:
    assert detect({"TF_CONFIG": " "}, []) is None
    assert detect({}, []) is None
