"""A small Kubernetes, and jobs that are submitted to it from this process."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.config import kube_config
from tests.launch.conftest import PROGRAM
from tests.servers import kubernetes
from tests.servers.processes import TEST_RUN

from phalanx.launch.backends.kubeflow import KubeflowLauncher
from phalanx.launch.backends.kubernetes import KubernetesLauncher
from phalanx.launch.backends.trainjob import TrainJobLauncher
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.kube.handle import PodsHandle
from phalanx.launch.kube.launcher import PodsLauncher
from phalanx.launch.kube.options import PodOptions
from phalanx.launch.termination import GracePeriods

Submit = Callable[..., PodsHandle]
LAUNCHERS: dict[str, Callable[..., PodsLauncher]] = {
    "kubernetes": KubernetesLauncher,
    "kubeflow": KubeflowLauncher,
    "trainjob": TrainJobLauncher,
}


@pytest.fixture
def cluster(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[kubernetes.Kubernetes]:
    shutil.copy(PROGRAM, tmp_path)
    folder = tmp_path_factory.mktemp("kubernetes")
    with kubernetes.running(folder, tmp_path) as (started, variables):
        # The client reads KUBECONFIG when it is imported.
        default = "KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(kube_config, default, variables["KUBECONFIG"])
        yield started


@pytest.fixture
def submit(cluster: kubernetes.Kubernetes) -> Submit:
    """Submit a job of train.py, which counts to `steps`, to a backend."""

    def run(
        options: PodOptions | None = None,
        *,
        backend: str = "kubernetes",
        steps: int | str = 0,
        context: str | None = None,
        **shape: int | bool | str,
    ) -> PodsHandle:
        program = Program(ProgramKind.FILE, "train.py", (str(steps),))
        environment = {"TEST_RUN": TEST_RUN}
        job = replace(Job("train", program, environment=environment), **shape)  # type: ignore[arg-type]
        container = Container("digits:1", python=sys.executable)
        periods = GracePeriods(grace=5, linger=5, evaluator_linger=5)
        chosen = replace(options or PodOptions(), grace_periods=periods)
        launcher = LAUNCHERS[backend](container, chosen, context)
        return launcher.submit(launcher.plan(job))

    return run
