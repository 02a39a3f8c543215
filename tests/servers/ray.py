"""A real Ray cluster of three nodes on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator


def why_not() -> str | None:
    """Return why Ray cannot be started here, or None."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install 'phalanx[ray]'"
    return None


@contextlib.contextmanager
def three_nodes() -> Iterator[dict[str, str]]:
    """Start the cluster, and yield the variables that its clients need."""
    from ray.cluster_utils import Cluster

    with _short_directory():
        head = {"num_cpus": 2, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=2)
            cluster.wait_for_nodes(timeout=240)
            yield {"RAY_ADDRESS": cluster.address}
        finally:
            cluster.shutdown()


@contextlib.contextmanager
def _short_directory() -> Iterator[None]:
    """Use a short path for Ray's sockets, which have a length limit that pytest's paths exceed."""
    before = os.environ.get("RAY_TMPDIR")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        os.environ["RAY_TMPDIR"] = directory
        try:
            yield
        finally:
            del os.environ["RAY_TMPDIR"]
            if before is not None:
                os.environ["RAY_TMPDIR"] = before
