"""`phalanx chaos`, on a job whose steps are made up."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.launch.chaos.catalogue import SCENARIOS, plan_faults
from phalanx.launch.chaos.network import find_obstacle
from phalanx.launch.chaos.scenarios import DAMAGES

# Its chief saves every tenth step, and goes on there when it is started again.
PROGRAM = """
import os, pathlib, time
from phalanx.cluster.progress import RunProgress
if os.environ["PHALANX_TASK"] != "chief-0":
    time.sleep(600)
saved = pathlib.Path("saved")
step = int(saved.read_text()) if saved.exists() else 0
while step < 100:
    step += 1
    time.sleep(0.1)
    RunProgress("chief-0", step).write(pathlib.Path(os.environ["PHALANX_PROGRESS_FILE"]))
    if step % 10 == 0:
        RunProgress("chief-0", step, activity="saving").write(
            pathlib.Path(os.environ["PHALANX_PROGRESS_FILE"]))
        time.sleep(0.3)
        saved.write_text(str(step))
"""
# Its worker connects to its chief for each of its steps.
TALKING_PROGRAM = """
import contextlib, json, os, pathlib, socket, time
from phalanx.cluster.progress import RunProgress
def split(address):
    host, _, port = address.rpartition(":")
    return host, int(port)
chief = split(json.loads(os.environ["TF_CONFIG"])["cluster"]["chief"][0])
while os.environ["PHALANX_TASK"] == "worker-0":
    with contextlib.suppress(OSError):
        socket.create_connection(chief, 0.5).close()
    time.sleep(0.1)
server = socket.create_server(chief)
server.settimeout(0.1)
heard = 0
for step in range(1, 400):
    with contextlib.suppress(OSError):
        server.accept()
        heard += 1
    time.sleep(0.1)
    progress = RunProgress("chief-0", step, trainer_steps={"chief-0": step, "worker-0": heard})
    progress.write(pathlib.Path(os.environ["PHALANX_PROGRESS_FILE"]))
"""
TASKS = [Task(Role.CHIEF, 0), Task(Role.WORKER, 0), Task(Role.WORKER, 1), Task(Role.PS, 0)]


def test_faults_are_survived_and_shown_in_a_table(phalanx: Any, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(PROGRAM)
    done = phalanx(
        *("chaos", "--workers", 1, "--ps", 1, "--every", "1s", "--linger", "0s", "--grace", "5s"),
        *("--stop-limit", "2s", "--scenario", "chief-killed", "--scenario", "worker-stopped"),
        *("--scenario", "chief-killed-while-saving", "--scenario", "all-killed", "count.py"),
    )
    assert done.returncode == 0, done.stderr
    header, first, second, third, fourth = done.stdout.splitlines()
    assert header.split("  ")[0] == "fault"
    assert first.split()[:2] == ["chief-killed", "chief-0"]
    assert second.split()[:2] == ["worker-stopped", "worker-0"]
    assert first.endswith("recovered")
    assert second.endswith("recovered")
    assert third.split()[:2] == ["chief-killed-while-saving", "chief-0"]
    assert int(third.split()[2]) % 10 == 0
    assert third.endswith("recovered")
    assert fourth.split()[:3] == ["all-killed", "chief-0,", "worker-0,"]
    assert fourth.endswith("recovered")
    assert "worker-0 was stopped (SIGSTOP) for" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(bool(find_obstacle()), reason=str(find_obstacle()))
def test_a_task_is_cut_off_from_the_network_and_comes_back(phalanx: Any, tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALKING_PROGRAM)
    done = phalanx(
        *("chaos", "--workers", 1, "--every", "1s", "--linger", "0s", "--grace", "5s"),
        *("--scenario", "worker-partition", "talk.py"),
    )
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[1]
    assert row.split()[:2] == ["worker-partition", "worker-0"]
    assert row.endswith("recovered")
    assert (
        "phalanx-chaos"
        not in subprocess.run(
            ["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    )


@pytest.mark.slow
@pytest.mark.skipif(bool(find_obstacle()), reason=str(find_obstacle()))
@pytest.mark.parametrize("name", ["bridge-partition", "half-of-workers-flapping"])
def test_workers_lose_each_other_and_come_back(phalanx: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "talk.py").write_text(TALKING_PROGRAM.replace('== "worker-0"', '!= "chief-0"'))
    done = phalanx(
        *("chaos", "--workers", 2, "--every", "1s", "--linger", "0s", "--grace", "5s"),
        *("--scenario", name, "talk.py"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].split()[0] == name
    assert done.stdout.splitlines()[1].endswith("recovered")


def test_a_job_that_does_not_recover_fails(phalanx: Any, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(
        PROGRAM.replace("step = int", "if saved.exists(): 1 / 0\nstep = int")
    )
    done = phalanx(
        *("chaos", "--every", "2s", "--grace", "5s", "--scenario", "chief-killed", "count.py")
    )
    assert done.returncode == 1
    assert "the job ended: chief-0 failed with exit code 1" in done.stdout


def test_tasks_are_hit_again_and_one_after_the_other(phalanx: Any, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(PROGRAM.replace("< 100", "< 250"))
    done = phalanx(
        *("chaos", "--workers", 1, "--every", "1s", "--linger", "0s", "--grace", "5s"),
        *("--scenario", "chief-killed-twice", "--scenario", "all-terminated", "count.py"),
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[1:]
    assert first.split()[:2] == ["chief-killed-twice", "chief-0"]
    assert second.split()[:3] == ["all-terminated", "chief-0,", "worker-0"]
    assert first.endswith("recovered") and second.endswith("recovered")
    assert "chief-0 was killed by SIGKILL" in done.stderr
    assert "restart 2 of 5" in done.stderr
    assert "worker-0 was preempted: it is started again" in done.stderr


def test_timetable_of_a_scenario_hits_and_relieves_each_task_in_turn() -> None:
    chief, worker, *_ = TASKS
    by_name = {scenario.name: scenario for scenario in SCENARIOS}

    def table(name: str) -> list[tuple[float, str, bool]]:
        events = by_name[name].make_timetable([chief, worker])
        return [(event.after, str(event.task), event.begins) for event in events]

    assert table("all-terminated") == [(0.0, "chief-0", True), (1.0, "worker-0", True)]
    flapping = [(at, begins) for at, task, begins in table("worker-flapping") if task == "worker-0"]
    assert flapping == [(at * 4.0, at % 2 == 0) for at in range(8)]


def test_the_seed_decides_which_faults_are_drawn() -> None:
    assert plan_faults(TASKS, [], 5, 7) == plan_faults(TASKS, [], 5, 7)
    drawn = {fault.scenario.name for seed in range(80) for fault in plan_faults(TASKS, [], 5, seed)}
    missing = {Role.EVALUATOR, Role.DISPATCHER, Role.DATA_WORKER}
    impossible = {
        s.name
        for s in SCENARIOS
        if missing & {*s.roles} or s.when or s.action in DAMAGES or s.comes_last
    }
    # There is only one parameter server.
    assert drawn == {s.name for s in SCENARIOS} - impossible - {"two-ps-killed"}


def test_wrong_scenarios_are_rejected() -> None:
    for name, reason in (
        ("worker-tickled", "no scenario"),
        ("evaluator-killed", "needs 1 evaluator, and the job has 0"),
        ("two-ps-killed", "needs 2 ps, and the job has 1"),
    ):
        with pytest.raises(JobError, match=reason):
            plan_faults(TASKS, [name], 1, 0)


def test_half_of_the_workers_are_chosen_and_all_of_them_for_a_split() -> None:
    tasks = [Task(Role.CHIEF), *(Task(Role.WORKER, index) for index in range(5))]
    [half, split] = plan_faults(tasks, ["half-of-workers-flapping", "bridge-partition"], 1, 0)
    assert len(half.tasks) == 3
    assert split.tasks == tuple(tasks[1:])
    with pytest.raises(JobError, match="bridge-partition needs 2 worker, and the job has 1"):
        plan_faults(tasks[:2], ["bridge-partition"], 1, 0)


@pytest.mark.parametrize("name", ["reset-limit", "worker-killed-at-the-end", "worker-cut-off"])
def test_what_does_not_end_before_the_job_must_come_last(name: str) -> None:
    assert len(plan_faults(TASKS, ["ps-killed", name], 1, 0)) == 2
    with pytest.raises(JobError, match=f"{name} must be the last scenario"):
        plan_faults(TASKS, [name, "ps-killed"], 1, 0)


def test_what_happens_before_the_first_step_must_come_first() -> None:
    names = ["worker-killed-before-first-step", "ps-killed"]
    assert [fault.scenario.name for fault in plan_faults(TASKS, names, 1, 0)] == names
    with pytest.raises(JobError, match="worker-killed-before-first-step must be the first"):
        plan_faults(TASKS, names[::-1], 1, 0)


# Its checkpoints repeat their step, and it begins with the newest one that is intact.
SAVING_PROGRAM = """
import os, pathlib, time
from phalanx.cluster.progress import RunProgress
def read(file):
    numbers = set(file.read_text().split())
    is_whole = file.stat().st_size == 8000 and len(numbers) == 1
    return int(numbers.pop()) if is_whole else print("damaged:", file, flush=True)
files = sorted(pathlib.Path().glob("model.ckpt-*.data-*"), key=os.path.getmtime)
step = max((read(file) or 0 for file in files), default=0)
print("begins at", step, flush=True)
time.sleep(0.5)  # As a program that imports TensorFlow makes no step at once.
newest = ""
while step < 150:
    step += 1
    time.sleep(0.05)
    RunProgress("chief-0", step, checkpoint=newest).write(
        pathlib.Path(os.environ["PHALANX_PROGRESS_FILE"]))
    if step % 10 == 0:
        path = pathlib.Path(f"model.ckpt-{step}").absolute()
        path.with_name(path.name + ".index").touch()
        try:
            path.with_name(path.name + ".data-00000-of-00001").write_text(f"{step:07d} " * 1000)
            newest = str(path)
        except OSError as error:
            print("not saved:", error, flush=True)
"""


def test_damaged_checkpoints_and_a_death_before_the_first_step(
    phalanx: Any, tmp_path: Path
) -> None:
    (tmp_path / "save.py").write_text(SAVING_PROGRAM)
    done = phalanx(
        *("chaos", "--every", "1s", "--linger", "0s", "--grace", "5s", "--log-dir", "logs"),
        *("--scenario", "chief-killed-before-first-step", "--scenario", "checkpoint-bit-flipped"),
        *("--scenario", "checkpoint-truncated", "save.py"),
    )
    assert done.returncode == 0, done.stderr
    assert [row.split()[0] for row in done.stdout.splitlines()[1:]] == [
        "chief-killed-before-first-step",
        "checkpoint-bit-flipped",
        "checkpoint-truncated",
    ]
    log = (tmp_path / "logs/chief-0.log").read_text()
    assert log.count("damaged:") == 2
    assert log.count("begins at 0") >= 1


@pytest.mark.slow
def test_the_newest_checkpoint_is_empty_or_gone(phalanx: Any, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(SAVING_PROGRAM)
    done = phalanx(
        *("chaos", "--every", "1s", "--linger", "0s", "--grace", "5s", "--log-dir", "logs"),
        *("--scenario", "checkpoint-unsynced", "--scenario", "checkpoint-deleted", "save.py"),
    )
    assert done.returncode == 0, done.stderr
    assert [row.split()[-1] for row in done.stdout.splitlines()[1:]] == ["recovered"] * 2
    assert (tmp_path / "logs/chief-0.log").read_text().count("damaged:") == 1


@pytest.mark.slow
def test_a_disk_is_full_for_a_while(phalanx: Any, tmp_path: Path) -> None:
    program = SAVING_PROGRAM.replace("150", "900")
    (tmp_path / "save.py").write_text(program)
    done = phalanx(
        *("chaos", "--every", "1s", "--linger", "0s", "--grace", "5s", "--log-dir", "logs"),
        *("--scenario", "chief-disk-full", "save.py"),
    )
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "logs/chief-0.log").read_text()
    assert "not saved: [Errno 27] File too large" in log
    assert (tmp_path / "model.ckpt-900.data-00000-of-00001").stat().st_size == 8000


def test_partitions_are_refused_by_name_and_not_drawn_without_namespaces() -> None:
    with pytest.raises(JobError, match="worker-partition cannot run here: needs root"):
        plan_faults(TASKS, ["worker-partition"], 1, 0, "needs root")
    drawn = [fault for seed in range(40) for fault in plan_faults(TASKS, [], 5, seed, "needs root")]
    assert not any(fault.scenario.cuts for fault in drawn)


# As a chief that saves for longer than it may.
IGNORING = """
def ignore():
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from phalanx.cluster.progress import RunProgress
    RunProgress("chief-0", 0).write(pathlib.Path(os.environ["PHALANX_PROGRESS_FILE"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("worker-never-starts", "worker-0 was stopped (SIGSTOP) for"),
        ("worker-killed-while-preparing", "worker-0 was killed by SIGKILL"),
        ("chief-deadline-passed", "chief-0 was killed by SIGKILL"),
        ("worker-killed-at-the-end", ""),
        ("reset-limit", "the job chief-0 was killed by SIGKILL"),
        ("below-min-workers", "are left, and at least 2 are needed (--min-workers)"),
    ],
)
def test_scenarios_at_the_limits_of_a_job(
    phalanx: Any, tmp_path: Path, name: str, said: str
) -> None:
    text = PROGRAM.replace("while step", "time.sleep(1)\nwhile step")
    text = text.replace("step = int", "ignore()\nstep = int")
    text = text.replace("import os", IGNORING + "import os")
    text += """
RunProgress("chief-0", step, activity="finished").write(
    pathlib.Path(os.environ["PHALANX_PROGRESS_FILE"]))
time.sleep(2)
"""
    (tmp_path / "count.py").write_text(text)
    elastic = ["--max-workers", 1] if name == "below-min-workers" else []
    done = phalanx(
        *("chaos", "--workers", 1, "--ps", 1, *elastic, "--every", "1s", "--linger", "0s"),
        *("--grace", "5s", "--stop-limit", "2s", "--restarts", 2, "--scenario", name, "count.py"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].endswith("recovered")
    assert said in done.stderr


@pytest.mark.slow
def test_a_worker_that_gets_no_more_memory_is_started_again(phalanx: Any, tmp_path: Path) -> None:
    text = PROGRAM.replace(
        "    time.sleep(600)",
        "    kept = []\n    while True:\n        kept.append(bytearray(1 << 20)); time.sleep(0.2)",
    )
    (tmp_path / "count.py").write_text(text)
    done = phalanx(
        *("chaos", "--workers", 1, "--ps", 1, "--every", "1s", "--linger", "0s", "--grace", "5s"),
        *("--scenario", "worker-out-of-memory", "count.py"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker-0 failed with exit code 1: restart 1 of 5" in done.stderr
