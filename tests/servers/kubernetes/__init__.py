"""A small Kubernetes: an API server that stores objects, and controllers that run Jobs.

The pods of a Job are processes of this machine. What the API server and the controllers do is taken
from their documentation: authorization by Roles and its escalation check, admission by quotas and
Pod Security, watches, owners, times to live, suspension, and the rules for failures of pods. With
`isolated`, the pod of each task has its own network and DNS name, so that all pods can use the same
port.
"""

from tests.servers.kubernetes.cluster import Kubernetes
from tests.servers.kubernetes.operators import tf_config
from tests.servers.kubernetes.server import running

__all__ = ["Kubernetes", "running", "tf_config"]
