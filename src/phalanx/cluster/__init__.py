"""Clusters, TF_CONFIG, and the detection of this process's task."""

from phalanx.cluster.detect import detect
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import TFConfig

__all__ = ["Cluster", "Role", "TFConfig", "Task", "detect"]
