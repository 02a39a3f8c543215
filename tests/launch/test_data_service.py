"""tf.data service beside a job, as each launcher would start it."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import JobError
from phalanx.cluster.detect import detect
from phalanx.launch.backends.docker import DockerLauncher
from phalanx.launch.backends.kubeflow import KubeflowLauncher
from phalanx.launch.backends.kubernetes import KubernetesLauncher
from phalanx.launch.backends.local import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.slurm import SlurmLauncher
from phalanx.launch.backends.slurm.plan import SlurmOptions
from phalanx.launch.backends.ssh import SshLauncher
from phalanx.launch.backends.ssh.plan import Host, SshOptions
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.kube.options import PodOptions
from phalanx.launch.processes.plan import ProcessPlan

JOB = Job("digits", Program(ProgramKind.FILE, "train.py"), workers=1, evaluators=1, data_workers=2)
SERVE = "python -m phalanx data-service"


def by_task(plan: ProcessPlan) -> dict[str, tuple[str, dict[str, str]]]:
    """The end of each task's command, and its environment."""
    return {str(each.task): (shlex.join(each.argv), dict(each.environment)) for each in plan.tasks}


def test_local_plan_of_data_workers() -> None:
    machine = Machine(processors=8, gpus=("0",), environ={}, python="python")
    launcher = LocalLauncher(machine, range(2220, 2225), log_dir=Path("logs"), run_id="r1")
    tasks = by_task(launcher.plan(JOB))
    assert tasks["dispatcher-0"][0] == f"{SERVE} dispatcher --port=2222"
    assert (
        tasks["data-worker-1"][0] == f"{SERVE} worker 127.0.0.1:2222 --host=127.0.0.1 --port=2224"
    )
    for name in ("dispatcher-0", "data-worker-0"):
        assert "TF_CONFIG" not in tasks[name][1]
        assert tasks[name][1]["CUDA_VISIBLE_DEVICES"] == ""
    for name in ("chief-0", "worker-0", "evaluator-0"):
        assert tasks[name][1]["PHALANX_DATA_SERVICE"] == "127.0.0.1:2222"
        assert "2222" not in tasks[name][1]["TF_CONFIG"]
    # Data workers work as hard as those that train.
    assert tasks["chief-0"][1]["OMP_NUM_THREADS"] == "2"


def test_docker_plan_of_data_workers() -> None:
    plan = DockerLauncher(Container("digits:1"), Path("x"), "r1").plan(JOB)
    tasks = by_task(plan.processes)
    assert tasks["chief-0"][1]["PHALANX_DATA_SERVICE"] == "digits-dispatcher-0:2222"
    assert "--env=PHALANX_DATA_SERVICE" in tasks["chief-0"][0]
    host = "digits-data-worker-1"
    served = f"{SERVE} worker digits-dispatcher-0:2222 --host={host} --port=2222"
    assert tasks["data-worker-1"][0].endswith(f" -- {served}")
    assert "digits-data-worker-1" in plan.processes.cleanup[0]


def test_ssh_plan_of_data_workers() -> None:
    place = SshOptions((Host.parse("a"), Host.parse("b")), "/x", python="python")
    tasks = by_task(SshLauncher(place, Path("x"), "r1").plan(JOB).processes)
    # chief a, worker b, evaluator a, dispatcher b, data workers a and b.
    assert "PHALANX_DATA_SERVICE=b:2223" in tasks["evaluator-0"][0]
    assert f"{SERVE} dispatcher --port=2223" in tasks["dispatcher-0"][0]
    assert f"{SERVE} worker b:2223 --host=b --port=2224" in tasks["data-worker-1"][0]
    assert "TF_CONFIG" not in tasks["data-worker-1"][0]


def test_slurm_plan_of_data_workers() -> None:
    plan = SlurmLauncher(SlurmOptions("/x", "/x/logs", "python")).plan(JOB)
    script = plan.render()
    assert "roles=(chief worker evaluator dispatcher data-worker)\n" in script
    assert "[dispatcher]=1 [data-worker]=2" in script
    assert "#SBATCH --ntasks=6\n" in script
    assert "\npython=python\n" in script
    assert len(dict(plan.counts)) == 5


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("dispatcher-0", "-m phalanx data-service dispatcher --port=2222"),
        (
            "data-worker-1",
            "-m phalanx data-service worker digits-dispatcher-0.digits:2222 "
            "--host=digits-data-worker-1.digits --port=2222",
        ),
    ],
)
def test_pod_of_a_data_worker(task: str, said: str) -> None:
    printed = run_pod(task)
    assert printed.startswith(
        f"-m phalanx guard --host=digits-{task}.digits --peers=digits-chief-0"
    )
    assert printed.endswith(f" -- echo {said}\n")


def test_pod_of_a_trainer_knows_the_dispatcher() -> None:
    config, service = run_pod("worker-0").splitlines()
    assert json.loads(config) == {
        "cluster": {
            "chief": ["digits-chief-0.digits:2222"],
            "worker": ["digits-worker-0.digits:2222"],
        },
        "task": {"type": "worker", "index": 0},
    }
    assert service == "digits-dispatcher-0.digits:2222"


def test_pod_detects_its_cluster_without_tf_config() -> None:
    shape = "chief=1,worker=1,dispatcher=1,data-worker=2"
    environ = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "digits-1", "PHALANX_SHAPE": shape}
    assert sorted(map(str, detect(environ, []).cluster.addresses)) == ["chief-0", "worker-0"]


def run_pod(task: str) -> str:
    """What is printed if all that trains prints its variables, and `echo` is Python."""
    program = Program(ProgramKind.COMMAND, "printenv", ("TF_CONFIG", "PHALANX_DATA_SERVICE"))
    launcher = KubernetesLauncher(Container("x", python="echo"), PodOptions())
    off = {"PHALANX_GUARD": "off"}
    role, _, index = task.rpartition("-")
    [container] = next(
        each["spec"]["template"]["spec"]["containers"]
        for each in launcher.plan(replace(JOB, program=program, environment=off)).objects
        if each["kind"] == "Job" and each["metadata"]["name"] == f"digits-{role}"
    )
    variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    return subprocess.run(
        container["command"],
        env={"PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": index, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_tfjob_rejects_data_workers() -> None:
    with pytest.raises(JobError, match="or launch the job on trainjob or kubern"):
        KubeflowLauncher(Container("x"), PodOptions()).plan(JOB)
