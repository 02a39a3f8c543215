"""Who is there, and who am I: clusters, TF_CONFIG, and what tells a process its place."""

from phalanx.cluster.detect import detect
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import TFConfig

__all__ = ["Cluster", "Role", "TFConfig", "Task", "detect"]
