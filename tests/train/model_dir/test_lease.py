"""The lease of a model_dir: one job at a time, and that of a dead job is taken over."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from phalanx.errors import ConfigurationError, LeaseError
from phalanx.train.model_dir.lease import (
    EXPIRY_SECONDS,
    Lease,
    Owner,
    acquire,
    check_lease,
    hold_lease,
)
from phalanx.train.model_dir.lease_file import LocalLeaseFile, RemoteLeaseFile, open_lease_file

HOLD = """
import sys, time
from phalanx.train.model_dir.lease import hold_lease
with hold_lease(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


class Clock:
    """A clock that only sleeping moves; `on_sleep` is what another host does meanwhile."""

    def __init__(self, on_sleep: object = None) -> None:
        self.now = 0.0
        self.on_sleep = on_sleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if callable(self.on_sleep):
            self.on_sleep(self.now)


def elsewhere(job: str = "") -> Owner:
    """A process of another host, about which nothing can be looked up."""
    owner = Owner.of_this_process({})
    machine = uuid.uuid4().hex
    return dataclasses.replace(owner, job=job, machine=machine, host="other", pid=1, started="1")


def test_generations_of_an_elastic_job_are_one_job_and_runs_in_an_allocation_are_several() -> None:
    def job(environ: dict[str, str], *addresses: str) -> str:
        return Owner.of_this_process(environ, addresses).job

    elastic = {"PHALANX_JOB_ID": "r1", "SLURM_JOB_ID": "7"}
    assert job(elastic, "a:1", "b:1") == job(elastic, "b:1")
    assert job(elastic, "a:1") != job({**elastic, "PHALANX_JOB_ID": "r2"}, "a:1")
    allocation = {"SLURM_JOB_ID": "7"}
    assert job(allocation, "a:1") == job(allocation, "a:1") != job(allocation, "a:2")


def test_a_second_job_is_refused_and_a_dead_one_is_taken_over(tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX", "SLURM"))}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with (
            pytest.raises(
                ConfigurationError, match=f"in use by another job .process {process.pid}"
            ),
            hold_lease(str(tmp_path)),
        ):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with hold_lease(str(tmp_path)):
        check_lease(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_another_start_of_the_same_job_takes_over_at_once(tmp_path: Path) -> None:
    clock = Clock()
    file = LocalLeaseFile(str(tmp_path))
    assert file.create(_text(elsewhere("job")))
    acquire(file, elsewhere("job"), str(tmp_path), clock, clock.sleep)
    assert clock.now < 1


@pytest.mark.parametrize("kind", [LocalLeaseFile, RemoteLeaseFile])
def test_a_lease_that_is_not_renewed_expires(
    tmp_path: Path, kind: type[LocalLeaseFile | RemoteLeaseFile]
) -> None:
    # TensorFlow's file systems take this for a path, like that of gs://.
    file = kind(str(tmp_path))
    first, second = elsewhere(), elsewhere()
    assert file.create(_text(first))
    assert not file.create(_text(second))
    clock = Clock()
    acquire(file, second, str(tmp_path), clock, clock.sleep)
    assert EXPIRY_SECONDS <= clock.now < EXPIRY_SECONDS + 5
    with pytest.raises(LeaseError, match="taken over by process 1 on other"):
        Lease(file, first, str(tmp_path)).check()
    Lease(file, second, str(tmp_path)).check()


@pytest.mark.parametrize("kind", [LocalLeaseFile, RemoteLeaseFile])
def test_a_lease_that_is_renewed_by_another_host_is_refused(
    tmp_path: Path, kind: type[LocalLeaseFile | RemoteLeaseFile]
) -> None:
    file, holder = kind(str(tmp_path)), elsewhere()
    assert file.create(_text(holder))
    renewing = kind(str(tmp_path))
    clock = Clock(lambda now: (renewing.renew(_text(holder)), renewing.renew(_text(holder))))
    with pytest.raises(ConfigurationError, match=r"in use by another job .process 1 on other"):
        acquire(file, elsewhere(), str(tmp_path), clock, clock.sleep)


def test_of_two_that_take_over_at_once_one_is_refused(tmp_path: Path) -> None:
    file, other = LocalLeaseFile(str(tmp_path)), elsewhere()
    assert file.create(_text(elsewhere()))

    def interfere(now: float) -> None:
        if now > EXPIRY_SECONDS:
            file.replace(_text(other))

    clock = Clock(interfere)
    with pytest.raises(ConfigurationError, match="in use"):
        acquire(file, elsewhere(), str(tmp_path), clock, clock.sleep)


def test_a_deleted_lease_is_written_again(tmp_path: Path) -> None:
    file, owner = open_lease_file(str(tmp_path / "run")), elsewhere()
    file.renew(_text(owner))
    Lease(file, owner, str(tmp_path)).check()


def _text(owner: Owner) -> str:
    return json.dumps(dataclasses.asdict(owner))
