"""The steps of an elastic job, and where they run."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from phalanx import JobError
from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.slurm.elastic import Place, find_places, parse_counts, plan_processes
from phalanx.launch.backends.slurm.plan import SlurmOptions, plan_script
from phalanx.launch.job import Job, Program, ProgramKind, Resources

JOB = Job(
    "digits",
    Program(ProgramKind.FILE, "train.py", ("--name={role}",)),
    workers=2,
    min_workers=1,
    max_workers=3,
    environment={"TOKEN": "a b"},
)
OPTIONS = SlurmOptions("/shared/digits", "/shared/digits/logs", "/opt/python")
WORKERS = [Task(Role.WORKER, index) for index in range(3)]


def list_hosts(nodes: str) -> list[str]:
    return {"n[1-2]": ["n1", "n2"], "n3": ["n3"], "n4": ["n4"]}[nodes]


def test_slots_are_placed_on_the_nodes_of_the_allocation() -> None:
    environ = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    places = find_places(JOB, environ, list_hosts)
    assert [place.node for place in places.values()] == ["n1", "n1", "n2", "n2"]
    assert places[Task(Role.CHIEF)].component is None
    with pytest.raises(JobError, match="has room for 3 tasks, which is too few"):
        find_places(JOB, {**environ, "SLURM_TASKS_PER_NODE": "2,1"}, list_hosts)


def test_roles_with_different_resources_have_components() -> None:
    environ = {
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n3",
        "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]",
        "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2,1",
    }
    job = replace(JOB, resources={Role.WORKER: Resources(gpus=1)})
    places = find_places(job, environ, list_hosts)
    assert places == {
        Task(Role.CHIEF): Place("n3", 0),
        WORKERS[0]: Place("n1", 1),
        WORKERS[1]: Place("n1", 1),
        WORKERS[2]: Place("n2", 1),
    }


@pytest.mark.parametrize("text", ["", "x", "2(3)"])
def test_unknown_counts_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="SLURM_TASKS_PER_NODE is"):
        parse_counts(text)


def test_each_process_of_a_generation_is_a_step_on_its_node() -> None:
    nodes = ["n1", "n1", "n2", "n2"]
    places = dict(zip([Task(Role.CHIEF), *WORKERS], map(Place, nodes), strict=True))
    plan = plan_processes(JOB, OPTIONS, places, 10000, "r1")
    assert plan.elastic is not None
    members = [Task(Role.CHIEF), WORKERS[2]]
    chief, worker = pickle.loads(pickle.dumps(plan.elastic)).make_tasks(members)
    assert (worker.task, worker.rank, worker.is_relay) == (WORKERS[2], WORKERS[0], True)
    assert "--nodelist=n2" in worker.argv
    text = next(each for each in worker.argv if each.startswith("TF_CONFIG="))
    config = json.loads(text.partition("=")[2])
    assert config["cluster"] == {"chief": ["n1:10000"], "worker": ["n2:10001"]}
    assert config["task"] == {"type": "worker", "index": 0}
    assert "--name=worker" in worker.argv
    assert not any("a b" in each for each in chief.argv)
    assert "a b" in chief.environment.values()


def test_script_holds_the_job_and_keeps_it_when_a_node_is_lost() -> None:
    script = plan_script(JOB, OPTIONS).script
    assert "#SBATCH --ntasks=4" in script
    assert "#SBATCH --no-kill" in script
    content = json.loads(script.partition("<<'END'\n")[2].rpartition("\nEND")[0])
    assert Job.load(content["job"]) == JOB
    assert content["options"]["python"] == "/opt/python"
