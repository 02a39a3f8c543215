"""Finds launchers by the names of their backends: the built-in ones and those of other packages.

A package adds a launcher with an entry point in the group `phalanx.launchers`:

    [project.entry-points."phalanx.launchers"]
    nomad = "my_package.nomad:NomadLauncher"
"""

import sys
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from phalanx.errors import ConfigurationError
from phalanx.launch.base import LastingLauncher, Launcher

GROUP = "phalanx.launchers"

BUILT_IN = {
    "compose": "phalanx.launch.backends.compose:ComposeLauncher",
    "docker": "phalanx.launch.backends.docker:DockerLauncher",
    "kubeflow": "phalanx.launch.backends.kubeflow:KubeflowLauncher",
    "kubernetes": "phalanx.launch.backends.kubernetes:KubernetesLauncher",
    "local": "phalanx.launch.backends.local:LocalLauncher",
    "marathon": "phalanx.launch.backends.marathon:MarathonLauncher",
    "ray": "phalanx.launch.backends.ray:RayLauncher",
    "slurm": "phalanx.launch.backends.slurm:SlurmLauncher",
    "ssh": "phalanx.launch.backends.ssh:SshLauncher",
    "swarm": "phalanx.launch.backends.swarm:SwarmLauncher",
    "trainjob": "phalanx.launch.backends.trainjob:TrainJobLauncher",
}


@cache
def _find_points(path: tuple[str, ...]) -> EntryPoints:
    """The launchers of the packages on `path`; to look for them takes 10 ms."""
    return entry_points(group=GROUP)


def names() -> list[str]:
    return sorted({*BUILT_IN, *(point.name for point in _find_points(tuple(sys.path)))})


def find(name: str) -> type[Launcher[Any]]:
    """Import and return the launcher of a backend. No package can replace a built-in one."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Launcher[Any]] = getattr(import_module(module), attribute)
    else:
        points = list(_find_points(tuple(sys.path)).select(name=name))
        if not points:
            raise ConfigurationError(
                f"there is no launcher {name!r}: there are {', '.join(names())}; "
                f"a package adds one with an entry point in the group {GROUP!r}"
            )
        found = points[0].load()
    missing = [method for method in ("plan", "submit") if not hasattr(found, method)]
    if missing:
        raise ConfigurationError(
            f"the launcher {name!r} has no method {' and no '.join(missing)}: "
            "see phalanx.launch.base.Launcher"
        )
    return found


def find_lasting(name: str) -> type[LastingLauncher[Any]]:
    """Import and return the launcher of a backend whose jobs outlive their launcher."""
    launcher: object = find(name)
    if not hasattr(launcher, "attach"):
        raise ConfigurationError(
            f"the launcher {name!r} has no method attach: its jobs end with their launcher"
        )
    return launcher  # type: ignore[return-value]
