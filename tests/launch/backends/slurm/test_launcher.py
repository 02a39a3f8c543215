"""What `submit`, the handle and the script do, with commands that answer as Slurm's would."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import JobError
from phalanx.launch.backends.slurm import SlurmLauncher
from phalanx.launch.backends.slurm.plan import SlurmOptions
from phalanx.launch.job import Job, Program, ProgramKind

ANSWERS = {
    "sbatch": "cat > /dev/null; echo 7",
    "scancel": "true",
    "scontrol": '[ "$2" = hostnames ] && echo here || echo "JobState=RUNNING Reason=None"',
    # Every task of a step, one after the other.
    "srun": """\
for option; do
    case $option in --ntasks=*) count=${option#*=} ;; --output=*) log=${option#*=} ;; esac
done
for ((number = 0; number < count; number++)); do
    SLURM_PROCID=$number bash -c run_task >> "${log/\\%t/$number}" 2>&1 || exit
done""",
}


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of commands, and in its file `calls` what they were called with."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, answer in ANSWERS.items():
        write_command(directory, name, answer)
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)
    return directory


def write_command(directory: Path, name: str, answer: str) -> None:
    path = directory / name
    path.write_text(f'#!/bin/bash\necho "{name} $*" >> {directory}/calls\n{answer}\n')
    path.chmod(0o755)


def launcher(tmp_path: Path) -> SlurmLauncher:
    return SlurmLauncher(SlurmOptions(str(tmp_path), str(tmp_path / "my logs"), "python3"))


def make_job(workers: int = 0) -> Job:
    program = Program(ProgramKind.COMMAND, "env")
    return Job("digits", program, chief=not workers, workers=workers)


def run_script(tmp_path: Path, job: Job) -> subprocess.CompletedProcess[str]:
    """The script as in an allocation of a single node."""
    tasks = len(job.tasks())
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n", "SLURM_TASKS_PER_NODE": str(tasks)}
    return subprocess.run(
        ["bash"],
        input=launcher(tmp_path).plan(job).render(),
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_submit_keeps_other_files_in_the_log_directory(tmp_path: Path) -> None:
    logs = tmp_path / "my logs"
    logs.mkdir()
    for name in ("mine.log", "my.state", "worker-9.log", "chief-0.log", "batch.log", "result"):
        (logs / name).write_text("old")
    launcher(tmp_path).submit(launcher(tmp_path).plan(make_job()))
    assert {path.name for path in logs.iterdir()} == {"mine.log", "my.state", "worker-9.log"}


def test_submit_reports_a_file_that_cannot_be_replaced(tmp_path: Path, commands: Path) -> None:
    (tmp_path / "my logs/result").mkdir(parents=True)
    with pytest.raises(JobError, match="result is in the way of the job's output"):
        launcher(tmp_path).submit(launcher(tmp_path).plan(make_job()))
    assert not (commands / "calls").exists()


def test_script_reads_only_the_states_of_its_own_tasks(tmp_path: Path) -> None:
    logs = tmp_path / "my logs"
    logs.mkdir()
    # Of an earlier job with more workers, and of somebody else.
    for name in ("worker-0.state", "worker-9.state", "my.state"):
        (logs / name).write_text("failed 0 1\n")
    done = run_script(tmp_path, make_job(workers=2))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (logs / "worker-0.state").read_text() == "done 0 0\n"
    assert (logs / "my.state").read_text() == "failed 0 1\n"


def test_result_names_the_signal_and_the_restarts(tmp_path: Path, commands: Path) -> None:
    handle = launcher(tmp_path).submit(launcher(tmp_path).plan(make_job(workers=1)))
    (tmp_path / "my logs/worker-0.state").write_text("failed 1 137\n")
    (tmp_path / "my logs/result").write_text("1 the step of the role worker failed\n")
    write_command(commands, "scontrol", "echo JobState=FAILED Reason=None")
    assert [status.exit_code for status in handle.status()] == [-9]
    result = handle.wait(0)
    assert result is not None
    assert result.reason == (
        "worker-0 was killed by SIGKILL (the system does that when memory runs out), restarted once"
    )


def test_ctrl_c_during_submit_cancels_the_job(tmp_path: Path, commands: Path) -> None:
    write_command(commands, "scontrol", "kill -INT $PPID")
    with pytest.raises(KeyboardInterrupt):
        launcher(tmp_path).submit(launcher(tmp_path).plan(make_job()))
    assert (commands / "calls").read_text().endswith("scancel 7\n")
    assert not (tmp_path / "my logs").exists()


def test_cancel_works_without_the_log_directory(tmp_path: Path, commands: Path) -> None:
    facts = {"number": "7", "log_dir": str(tmp_path / "gone"), "counts": {"chief": 1}}
    SlurmLauncher.attach(facts).cancel()
    assert "scancel --batch --signal=TERM 7\n" in (commands / "calls").read_text()


def test_user_variables_may_have_names_of_script_variables(tmp_path: Path) -> None:
    given = {"count": "3", "role": "boss", "grace": "it's"}
    done = run_script(tmp_path, replace(make_job(), environment=given))
    assert done.returncode == 0, done.stdout + done.stderr
    seen = (tmp_path / "my logs/chief-0.log").read_text().splitlines()
    assert [f"{name}={text}" for name, text in given.items() if f"{name}={text}" not in seen] == []


def test_port_variable_sets_the_first_port(tmp_path: Path) -> None:
    run_script(tmp_path, replace(make_job(), environment={"PHALANX_PORT": "5000"}))
    assert '["here:5000"]' in (tmp_path / "my logs/chief-0.log").read_text()


@pytest.mark.parametrize(
    ("codes", "restarts", "state"),
    [
        # Wrong usage is not tried again.
        ([2, 0], 3, "failed 0 2"),
        # A preemption does not count, saved or not.
        ([75, 1, 143, 0], 1, "done 3 0"),
        ([1, 0], 1, "done 1 0"),
        ([1, 5], 1, "failed 1 5"),
        ([75, 0], 0, "failed 0 75"),
    ],
)
def test_exits_are_tried_again_by_the_rules_of_all_backends(
    tmp_path: Path, codes: list[int], restarts: int, state: str
) -> None:
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
    script = f"cd '{tmp_path}'; read code < codes; sed -i 1d codes; exit $code"
    job = Job("digits", Program(ProgramKind.COMMAND, "bash", ("-c", script)), restarts=restarts)
    run_script(tmp_path, job)
    assert (tmp_path / "my logs/chief-0.state").read_text() == f"{state}\n"


def test_the_loss_of_another_task_does_not_count(tmp_path: Path) -> None:
    line = "phalanx: a peer stopped responding: ps-0"
    script = f"cd '{tmp_path}'; [ -e lost ] && exit; touch lost; echo '{line}'; exit 1"
    job = Job("digits", Program(ProgramKind.COMMAND, "bash", ("-c", script)), restarts=1)
    run_script(tmp_path, job)
    text = (tmp_path / "my logs/chief-0.log").read_text()
    assert "phalanx: chief-0 has lost another task: it is started again" in text
