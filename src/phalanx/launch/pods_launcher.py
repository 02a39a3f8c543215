"""What the launchers whose tasks are pods share: all but the objects that make the pods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from phalanx.launch.container import Container
from phalanx.launch.job import Job
from phalanx.launch.kubernetes_client import Client
from phalanx.launch.manifest import Manifest
from phalanx.launch.patch import apply_patches
from phalanx.launch.placeholders import check_placeholders
from phalanx.launch.pods import (
    ObjectsPlan,
    Place,
    count_tasks,
    make_credentials,
    make_disruption_budget,
    make_network_policy,
    make_tensorboard,
)
from phalanx.launch.pods_handle import JobKind, PodsHandle, submit_objects


@dataclass(frozen=True)
class PodsLauncher(ABC):
    """Makes the objects of a job through the API; the rest is up to the cluster's controllers."""

    container: Container
    place: Place
    context: str | None = None

    kind: ClassVar[JobKind]

    @abstractmethod
    def make_objects(self, job: Job) -> Iterator[Manifest]:
        """The objects that make the pods."""

    def plan(self, job: Job) -> ObjectsPlan:
        """The objects that would be made, in their order."""
        job.validate()
        self.container.validate(job)
        check_placeholders(job.program.arguments)
        about = (job, self.container, self.place)
        objects = [
            *make_credentials(*about),
            make_network_policy(*about),
            *make_disruption_budget(*about),
            *self.make_objects(job),
            *make_tensorboard(*about),
        ]
        patched = apply_patches(objects, self.place.patches)
        counts = tuple(count_tasks(job).items())
        return ObjectsPlan(job.name, self.place.namespace, patched, counts)

    def submit(self, plan: ObjectsPlan) -> PodsHandle:
        """Make the objects, all or none."""
        return submit_objects(self.kind, Client(self.context), plan)

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> PodsHandle:
        """The job of this name in its namespace."""
        return PodsHandle.attach(cls.kind, facts)
