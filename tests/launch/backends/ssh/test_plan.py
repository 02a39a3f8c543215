"""What would be run on which host: compared whole."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import JobError
from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.ssh import SshLauncher
from phalanx.launch.backends.ssh.plan import Host, SshOptions
from phalanx.launch.job import Job, Program, ProgramKind, Resources

GOLDEN = Path(__file__).parents[2] / "golden"
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "it's")),
    workers=1,
    model_dir="gs://bucket/digits",
    environment={"SEED": "1"},
)
OPTIONS = SshOptions(
    hosts=(Host.parse("ann@a"), Host.parse("ssh://b:2200=10.0.0.2")),
    directory="/scratch/my digits",
    copies=("train.py",),
)


def launcher(options: SshOptions = OPTIONS) -> SshLauncher:
    return SshLauncher(options, Path("jobs/digits"), run_id="r1")


def addresses(job: Job, options: SshOptions = OPTIONS) -> dict[str, list[str]]:
    command = launcher(options).plan(job).processes.tasks[0].argv[-1]
    match = re.search(r'TF_CONFIG=(\{.*?"index": \d+\})', command)
    assert match is not None
    found: dict[str, list[str]] = json.loads(match[1] + "}")["cluster"]
    return found


def test_rendered_plan_matches_golden_file() -> None:
    assert launcher().plan(JOB).render() + "\n" == (GOLDEN / "ssh.txt").read_text()


def test_tasks_are_assigned_round_robin_with_ports_per_host() -> None:
    assert addresses(replace(JOB, model_dir=None, workers=3, ps=1, evaluators=1)) == {
        "chief": ["a:2222"],
        "worker": ["10.0.0.2:2222", "a:2223", "10.0.0.2:2223"],
        "ps": ["a:2224"],
    }


def test_hosts_that_share_an_address_share_its_ports() -> None:
    options = replace(OPTIONS, hosts=(Host.parse("ssh://h:1"), Host.parse("ssh://h:2")))
    assert addresses(replace(JOB, model_dir=None), options) == {
        "chief": ["h:2222"],
        "worker": ["h:2223"],
    }


def test_processors_become_threads() -> None:
    job = replace(JOB, resources={Role.WORKER: Resources(cpus=4)})
    chief, worker = (task.argv[-1] for task in launcher().plan(job).processes.tasks)
    assert "OMP_NUM_THREADS=4" in worker
    assert "OMP_NUM_THREADS" not in chief


def test_each_task_sees_its_own_gpus() -> None:
    job = replace(JOB, workers=3, resources={Role.WORKER: Resources(gpus=2)})
    seen = [
        re.search(r"CUDA_VISIBLE_DEVICES=([\d,]*)", task.argv[-1])
        for task in launcher().plan(job).processes.tasks
    ]
    # The chief and worker 1 are on the first host, workers 0 and 2 on the second.
    assert [match and match[1] for match in seen] == ["", "0,1", "0,1", "2,3"]
    assert "CUDA_VISIBLE_DEVICES" not in launcher().plan(JOB).render()


@pytest.mark.parametrize("text", ["", "=a", "-oProxyCommand=x", "a="])
def test_invalid_host_is_rejected(text: str) -> None:
    with pytest.raises(JobError, match="is not a host"):
        Host.parse(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ssh://ann@[fd00::1]:22", "[fd00::1]"),
        ("ssh://[fd00::1]", "[fd00::1]"),
        ("ssh://ann@gpu1:22/", "gpu1"),
        ("ann@fd00::1", "[fd00::1]"),
        ("gpu1=fd00::1", "[fd00::1]"),
    ],
)
def test_address_of_a_host(text: str, address: str) -> None:
    assert Host.parse(text).address == address


@pytest.mark.parametrize(
    ("options", "job"),
    [
        (replace(OPTIONS, port=65535), replace(JOB, workers=3)),
        (replace(OPTIONS, port=65534), replace(JOB, data_workers=3)),
        (replace(OPTIONS, hosts=(Host.parse("gpu 1"),)), JOB),
        (replace(OPTIONS, hosts=(Host.parse("gpu1:2200"),)), JOB),
    ],
)
def test_unusable_address_is_rejected(options: SshOptions, job: Job) -> None:
    with pytest.raises(JobError, match=r"the address of \S+: '.*' (has|is not)"):
        launcher(options).plan(job)


def test_missing_hosts_are_rejected() -> None:
    with pytest.raises(JobError, match="no host is set to start the tasks on: add --host"):
        launcher(replace(OPTIONS, hosts=())).plan(JOB)


def test_too_large_tf_config_is_rejected() -> None:
    with pytest.raises(JobError, match=r"10001 tasks has [\d,]+ bytes, but Linux has room"):
        launcher().plan(replace(JOB, workers=10_000))


def test_a_generation_has_the_addresses_of_its_slots() -> None:
    job = replace(JOB, model_dir=None, workers=2, min_workers=1, max_workers=3)
    plan = launcher().plan(job).processes
    assert addresses(job) == {"chief": ["a:2222"], "worker": ["10.0.0.2:2222", "a:2223"]}
    assert plan.elastic is not None
    assert [str(slot) for slot in plan.elastic.size.slots] == [
        *("chief-0", "worker-0", "worker-1", "worker-2")
    ]
    # Worker 0 is lost, and the spare slot takes its place.
    members = [task for task in plan.elastic.size.slots if task != Task(Role.WORKER)]
    chief, first, second = pickle.loads(pickle.dumps(plan.elastic)).make_tasks(members)
    assert (str(first.task), str(first.rank), first.log.name) == (
        *("worker-1", "worker-0", "worker-1.log"),
    )
    assert (str(second.task), str(second.rank)) == ("worker-2", "worker-1")
    assert "ssh://b:2200" in second.argv
    assert '"chief": ["a:2222"], "worker": ["a:2223", "10.0.0.2:2223"]' in chief.argv[-1]
    assert "PHALANX_RESTARTS=1" in first.argv[-1]
    assert "--job=worker" in first.argv[-1]
