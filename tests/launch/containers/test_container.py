"""Mounts of containers."""

from __future__ import annotations

import pytest

from phalanx.errors import JobError
from phalanx.launch.containers.container import Container, Mount, MountKind


def test_parse_mounts() -> None:
    assert Mount.parse("/home/ann/data:/data:ro") == Mount(
        MountKind.HOST, "/home/ann/data", "/data", read_only=True
    )
    assert Mount.parse("nfs://server/export:/data").source == "server:/export"
    with pytest.raises(JobError, match="with :ro at the end for a read-only mount"):
        Mount.parse("data")


def test_two_mounts_with_the_same_target_raise() -> None:
    mounts = (Mount.parse("/a:/data"), Mount.parse("/b:/data"))
    with pytest.raises(JobError, match="/data is mounted twice"):
        Container("digits:1", mounts=mounts).validate()
