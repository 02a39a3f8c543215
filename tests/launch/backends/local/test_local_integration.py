"""The rules of ending, each shown with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.local import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.base import JobResult, TaskState
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE, find_run_processes
from phalanx.launch.processes.handle import start
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.processes.supervisor import NullObserver
from phalanx.launch.termination import GracePeriods

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
TaskCommand = Callable[..., "subprocess.Popen[str]"]

# A shell for each task: `sh -c SCRIPT role index`.
SHELL = ["--", "sh", "-c"]


def script(text: str) -> list[str]:
    return [*SHELL, text, "{role}", "{index}"]


@pytest.fixture
def witness() -> Iterator[str]:
    """A mark that every process of a test inherits; at the end nobody may still have it."""
    name = f"WITNESS_{uuid.uuid4().hex}"
    os.environ[name] = "1"
    yield name
    del os.environ[name]
    assert not alive(name)


def alive(name: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and f"{name}=1".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def wait_until(true: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


pytestmark = pytest.mark.usefixtures("witness")


def test_job_succeeds_with_the_chief_and_ps_are_ended(phalanx: Phalanx) -> None:
    done = phalanx("run", "--workers", 2, "--ps", 2, *script("[ $0 != ps ] || sleep 1000"))
    assert done.returncode == 0, done.stderr
    assert "1 chief, 2 workers, 2 ps" in done.stderr
    assert "succeeded" in done.stderr


def test_without_a_chief_every_worker_must_succeed(phalanx: Phalanx) -> None:
    every = phalanx(
        "run", "--no-chief", "--workers", 3, "--ps", 1, *script("[ $0 != ps ] || sleep 99")
    )
    assert every.returncode == 0, every.stderr
    one_short = phalanx("run", "--no-chief", "--workers", 2, *script("sleep $1; exit $1"))
    assert one_short.returncode == 1
    assert "worker-1 failed with exit code 1" in one_short.stderr


def test_workers_may_finish_after_the_chief(phalanx: Phalanx) -> None:
    done = phalanx("run", "--workers", 1, *script("[ $0 = chief ] || { sleep 1; echo finished; }"))
    assert done.returncode == 0
    assert "worker-0 | finished" in done.stdout
    assert "is ended" not in done.stderr


def test_worker_that_never_finishes_is_ended_and_reported(phalanx: Phalanx) -> None:
    done = phalanx("run", "--workers", 1, "--linger", 0.2, *script("[ $0 = chief ] || sleep 1000"))
    assert done.returncode == 0
    assert "worker-0 still ran after the job had succeeded, and is ended" in done.stderr


def test_worker_that_hangs_after_its_peers_is_named_and_ended(phalanx: Phalanx) -> None:
    hang = script("echo here; [ $1 = 0 ] || exec sleep 1000")
    options = ("--no-chief", "--workers", 2, "--ps", 1, "--silence-limit", "4s")
    done = phalanx("run", *options, *hang)
    assert done.returncode == 1
    assert "worker-1 has done and written nothing for" in done.stderr
    assert "it may wait for a worker that is done, and is ended after 4 s" in done.stderr
    assert "although another worker has succeeded (--silence-limit)" in done.stderr


def test_worker_that_computes_or_writes_may_take_longer_than_its_peers(phalanx: Phalanx) -> None:
    busy = "timeout 6 sh -c 'while :; do :; done'; true"
    writes = "for i in 1 2 3 4 5 6; do sleep 1; echo $i; done"
    done = phalanx(
        *("run", "--no-chief", "--workers", 3, "--silence-limit", "4s"),
        *script(f"case $1 in 1) {busy};; 2) {writes};; esac"),
    )
    assert done.returncode == 0, done.stderr


def test_worker_failure_after_the_chief_succeeded_is_ignored(phalanx: Phalanx) -> None:
    # A process is there until the launcher has asked for its exit code.
    late = "until [ -s chief ] && ! kill -0 $(cat chief); do sleep 0.1; done; exit 9"
    done = phalanx(
        "run", "--workers", 1, *script(f"[ $0 = chief ] && echo $$ > chief || {{ {late}; }}")
    )
    assert done.returncode == 0
    assert "worker-0 failed with exit code 9, but the job was already over" in done.stderr


def test_evaluator_lingers_longer_than_workers(phalanx: Phalanx) -> None:
    done = phalanx(
        *("run", "--evaluator", "--linger", 0.1),
        *script("[ $0 = chief ] || { sleep 1; echo evaluated; }"),
    )
    assert done.returncode == 0
    assert "evaluator-0 | evaluated" in done.stdout


def test_failure_ends_other_tasks_and_shows_last_lines(phalanx: Phalanx) -> None:
    done = phalanx(
        *("run", "--workers", 2, "--ps", 1),
        *script('echo "$0 $1 says so"; [ $0$1 = worker1 ] && exit 3; sleep 1000'),
    )
    assert done.returncode == 1
    last_lines = done.stderr.partition("the last lines of worker-1:\n")[2]
    assert last_lines.startswith("    worker 1 says so\n")
    assert "failed: worker-1 failed with exit code 3" in done.stderr


def test_failed_task_is_restarted_up_to_the_limit(phalanx: Phalanx, tmp_path: Path) -> None:
    done = phalanx(
        *("run", "--workers", 1, "--restarts", 2, "--log-dir", "logs"),
        *script("[ $0 = chief ] && sleep 1000; echo attempt; exit 4"),
    )
    assert done.returncode == 1
    assert "restart 1 of 2" in done.stderr
    assert "restart 2 of 2" in done.stderr
    assert "worker-0 failed with exit code 4, restarted 2 times" in done.stderr
    assert (tmp_path / "logs/worker-0.log").read_text() == "attempt\n" * 3


def test_restarted_task_recovers_on_the_same_port(phalanx: Phalanx) -> None:
    recovers = "echo $TF_CONFIG; [ -e once ] || { touch once; exit 1; }"
    done = phalanx("run", "--restarts", 1, *script(recovers))
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first == second
    assert "127.0.0.1" in first


def test_restarted_chief_finds_the_parameter_servers_that_it_had_released(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    fails_once = "[ $0 = chief ] && { sleep 1; [ -e once ] || { touch once; exit 1; }; }"
    done = phalanx(
        *("run", "--workers", 1, "--ps", 1, "--restarts", 1, "--log-dir", "logs"),
        *script(f"echo started; {fails_once}; true"),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs/ps-0.log").read_text() == "started\n" * 2


def test_signal_that_killed_a_task_is_reported(phalanx: Phalanx) -> None:
    done = phalanx("run", *script("kill -9 $$"))
    assert done.returncode == 1
    assert (
        "chief-0 was killed by SIGKILL (the system does that when memory runs out)" in done.stderr
    )


def test_child_processes_of_a_task_are_ended(phalanx: Phalanx) -> None:
    done = phalanx("run", *script("sleep 1000 & sleep 1000 & echo gone"))
    assert done.returncode == 0
    assert "chief-0 | gone" in done.stdout


def test_daemon_that_left_the_process_group_is_ended(phalanx: Phalanx) -> None:
    assert phalanx("run", *script("setsid sleep 1000 & sleep 0.3")).returncode == 0


# Writes a file when it runs, and another when it is asked to end; then leaves after a while.
POLITE = (
    "trap 'touch $0$1.asked; sleep 0.3; exit 0' TERM; touch $0$1.up; while :; do sleep 0.1; done"
)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_ends_all_tasks_with_sigterm(
    start_phalanx: TaskCommand, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    launcher = start_phalanx("run", "--workers", 1, "--ps", 1, *script(POLITE))
    wait_until(lambda: len(list(tmp_path.glob("*.up"))) == 3)
    launcher.send_signal(number)
    _, stderr = launcher.communicate(timeout=250)
    assert launcher.returncode == code
    assert f"ended by {number.name}" in stderr
    asked = {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*.asked")}
    assert set(asked) == {"chief0", "worker0", "ps0"}
    # The ps comes last: the others may still need what it holds.
    assert asked["ps0"] >= max(asked["chief0"], asked["worker0"]) + 200_000_000


DEAF = "trap '' TERM INT; touch $0$1.up; sleep 1000 & while :; do sleep 0.1; done"


def test_task_that_ignores_sigterm_is_killed_after_the_grace_period(
    start_phalanx: TaskCommand, tmp_path: Path
) -> None:
    launcher = start_phalanx("run", "--workers", 1, "--grace", 0.5, *script(DEAF))
    wait_until(lambda: len(list(tmp_path.glob("*.up"))) == 2)
    launcher.terminate()
    launcher.communicate(timeout=250)
    assert launcher.returncode == 143


# Says that it was asked to end, and goes on.
NOTES = "trap 'touch asked' TERM; trap '' INT; touch $0$1.up; while :; do sleep 0.1; done"


def test_second_ctrl_c_kills_at_once(start_phalanx: TaskCommand, tmp_path: Path) -> None:
    launcher = start_phalanx("run", "--grace", 1000, *script(NOTES))
    wait_until((tmp_path / "chief0.up").exists)
    launcher.send_signal(signal.SIGINT)
    wait_until((tmp_path / "asked").exists)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=250)
    assert launcher.returncode == 130


def test_sigkill_of_the_launcher_leaves_no_task(
    start_phalanx: TaskCommand, tmp_path: Path, witness: str
) -> None:
    launcher = start_phalanx("run", "--workers", 2, "--ps", 1, "--grace", 0.5, *script(DEAF))
    wait_until(lambda: len(list(tmp_path.glob("*.up"))) == 4)
    assert len(alive(witness)) >= 5
    launcher.kill()
    launcher.communicate(timeout=250)
    wait_until(lambda: not alive(witness))


@pytest.mark.slow
def test_run_that_is_started_again_ends_what_is_left(
    phalanx: Phalanx, start_phalanx: TaskCommand, tmp_path: Path, witness: str
) -> None:
    launcher = start_phalanx("run", "--workers", 1, *script(DEAF))
    wait_until(lambda: len(list(tmp_path.glob("*.up"))) == 2)
    listed = subprocess.run(
        ["ps", "-wwo", "pid=,args=", "--ppid", str(launcher.pid)],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    [guardian] = [int(line.split()[0]) for line in listed if "guardian.py" in line]
    # As the system does when memory runs out: nobody is left to end the tasks.
    os.kill(guardian, signal.SIGKILL)
    launcher.kill()
    launcher.wait(timeout=60)
    left = {*alive(witness)}
    start_phalanx("run", "--dry-run", *script("true")).communicate(timeout=60)
    # The shells of the tasks, each of which starts one `sleep` after the other.
    assert len(left & {*alive(witness)}) >= 2
    done = phalanx("run", *script("true"))
    assert done.returncode == 0, done.stderr
    assert "tasks of a run on this machine whose launcher was killed are ended" in done.stderr
    assert not alive(witness)


def test_closed_output_pipe_ends_the_job(tmp_path: Path, environ: dict[str, str]) -> None:
    chatty = f"{sys.executable} -m phalanx run -- sh -c 'while :; do echo line; done'"
    done = subprocess.run(
        ["bash", "-c", f"{chatty} | head -n 2; echo ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    assert done.stdout.splitlines() == ["chief-0 | line", "chief-0 | line", "1"]
    assert "the reader of its output closed the pipe" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_is_prefixed_merged_and_stored_in_full(phalanx: Phalanx, tmp_path: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); print('half', end='')"
    (tmp_path / "talk.py").write_text(code)
    done = phalanx("run", "--workers", 1, "--log-dir", "deep/logs", "talk.py")
    lines = done.stdout.splitlines()
    for name in ("chief-0 ", "worker-0"):
        assert [line for line in lines if line.startswith(name)] == [
            f"{name} | out",
            f"{name} | err",
            f"{name} | half",
        ]
    assert (tmp_path / "deep/logs/worker-0.log").read_text() == "out\nerr\nhalf"


def test_only_the_last_state_of_a_progress_bar_is_shown(phalanx: Phalanx) -> None:
    done = phalanx("run", "--", "printf", r"1/3\r2/3\r3/3\nend\n")
    assert done.stdout == "chief-0 | 3/3\nchief-0 | end\n"


def test_each_task_gets_its_own_tf_config(phalanx: Phalanx) -> None:
    done = phalanx(
        *("run", "--workers", 2, "--ps", 1, "--evaluator", "--model-dir", "m"),
        *script(
            "echo $TF_CONFIG; touch $0$1.up; until [ $(ls *.up | wc -l) = 5 ]; do sleep 0.1; done"
        ),
    )
    seen = dict(line.split(" | ") for line in done.stdout.splitlines())
    configs = {name.strip(): json.loads(text) for name, text in seen.items()}
    assert set(configs) == {"chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"}
    assert len({json.dumps(config["cluster"]) for config in configs.values()}) == 1
    for name, config in configs.items():
        assert f"{config['task']['type']}-{config['task']['index']}" == name
        assert config["model_dir"] == "m"
    addresses = [each for role in configs["ps-0"]["cluster"].values() for each in role]
    assert len(set(addresses)) == 4


def test_many_tasks_start_and_end_and_leave_nothing_behind(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    done = phalanx("run", "--workers", 60, "--log-dir", "logs", "--", "sleep", "0.5")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "logs").iterdir())) == 61


def test_concurrent_runs_use_different_ports(start_phalanx: TaskCommand, tmp_path: Path) -> None:
    task = "echo $TF_CONFIG; until [ -e go ]; do sleep 0.5; done"
    runs = [start_phalanx("run", "--workers", 3, *SHELL, task) for _ in range(10)]
    shown = [run.stdout.readline() for run in runs if run.stdout is not None]
    # All of them hold their ports now.
    (tmp_path / "go").touch()
    for run in runs:
        _, stderr = run.communicate(timeout=250)
        assert run.returncode == 0, stderr
    ports = [port for line in shown for port in re.findall(r"127\.0\.0\.1:(\d+)", line)]
    assert len(ports) == 40
    assert len(set(ports)) == 40


def test_python_api_follows_and_cancels_a_job(tmp_path: Path) -> None:
    job = Job("nap", Program(ProgramKind.COMMAND, "sh", ("-c", "echo up; sleep 1000")), workers=1)
    run_id = uuid.uuid4().hex
    with hold_ports(2) as ports:
        launcher = LocalLauncher(Machine.inspect(), ports, tmp_path, run_id)
        handle = launcher.submit(launcher.plan(job))
        wait_until(lambda: all(status.last_line == "up" for status in handle.status()))
        assert handle.wait(0.01) is None
        assert {status.state for status in handle.status()} == {TaskState.RUNNING}
        assert len(find_run_processes(run_id)) >= 2
        handle.cancel()
        result = handle.wait(250)
    assert result == JobResult(1, "cancelled")
    assert {status.state for status in handle.status()} == {TaskState.ENDED}
    assert list(handle.logs(job.tasks()[0])) == ["up"]
    assert find_run_processes(run_id) == []
    assert RUN_ID_VARIABLE not in os.environ


class SlowDisplay(NullObserver):
    """Takes a while for all it is shown, as a terminal far away does."""

    def output(self, task: Task, lines: list[str]) -> None:
        time.sleep(0.1)


def test_output_of_a_leftover_process_does_not_delay_the_end(tmp_path: Path) -> None:
    # It prints faster than the display takes it.
    command = ("sh", "-c", "timeout 200 yes noise & exit 0")
    marks = {RUN_ID_VARIABLE: uuid.uuid4().hex, TASK_VARIABLE: "chief-0"}
    task = TaskPlan(Task(Role.CHIEF), command, marks, tmp_path / "chief-0.log")
    handle = start(
        ProcessPlan((task,), marks[RUN_ID_VARIABLE], grace_periods=GracePeriods(grace=1)),
        os.environ,
        SlowDisplay(),
    )
    assert handle.wait(120) == JobResult(0, "succeeded")


@pytest.fixture
def polite_script(tmp_path: Path) -> str:
    """A command that runs until it is asked to end, and then saves."""
    (tmp_path / "polite.sh").write_text(POLITE)
    return "sh polite.sh"


def test_process_outside_the_group_of_its_task_gets_sigterm(
    start_phalanx: TaskCommand, tmp_path: Path, polite_script: str
) -> None:
    launcher = start_phalanx("run", *script(f"setsid {polite_script} & wait"))
    wait_until((tmp_path / "polite.sh.up").exists)
    launcher.terminate()
    launcher.communicate(timeout=250)
    assert (tmp_path / "polite.sh.asked").exists()


def test_restarted_task_finds_no_processes_of_its_former_run(phalanx: Phalanx) -> None:
    stray = "setsid sh -c 'echo $$ > stray; exec sleep 1000'"
    first = f"{stray} & until [ -s stray ]; do sleep 0.1; done; exit 1"
    second = "grep State /proc/$(cat stray)/status"
    done = phalanx("run", "--restarts", 1, *script(f"[ -e stray ] || {{ {first}; }}; {second}; :"))
    assert done.returncode == 0, done.stderr
    assert "sleeping" not in done.stdout


def test_ctrl_c_in_a_pipeline_keeps_the_grace_period(
    tmp_path: Path, environ: dict[str, str], polite_script: str
) -> None:
    """A terminal sends SIGINT to `tee` as well: that nobody reads any more changes nothing."""
    command = f"{sys.executable} -m phalanx run -- {polite_script} | cat"
    pipeline = subprocess.Popen(
        ["bash", "-c", command], cwd=tmp_path, env=environ, start_new_session=True
    )
    wait_until((tmp_path / "polite.sh.up").exists)
    os.killpg(pipeline.pid, signal.SIGINT)
    pipeline.wait(timeout=250)
    wait_until((tmp_path / "polite.sh.asked").exists)
    wait_until(lambda: not alive_groups(pipeline.pid))


def alive_groups(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def test_blocked_output_pipe_does_not_keep_the_job_from_ending(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", "--grace", "0.5", "--", "yes"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    log = tmp_path / "phalanx-logs"
    wait_until(lambda: any(path.stat().st_size > 100_000 for path in log.glob("*/*.log")))
    time.sleep(0.5)
    launcher.terminate()
    assert launcher.wait(timeout=250) == 143
    assert launcher.stdout is not None
    launcher.stdout.close()


@pytest.mark.parametrize("closed", [">/dev/full", "2>/dev/full", ">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_does_not_fail_the_job(
    tmp_path: Path, environ: dict[str, str], closed: str
) -> None:
    command = f"{sys.executable} -m phalanx run --log-dir logs -- sh -c 'echo hi; sleep 0.3'"
    done = subprocess.run(
        ["bash", "-c", f"{command} {closed}"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs/chief-0.log").read_text() == "hi\n"


def test_characters_that_the_terminal_cannot_encode_are_replaced(
    phalanx: Phalanx,
) -> None:
    done = phalanx("run", "--", "printf", r"caf\303\251\n", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "chief-0 | caf?\n")


def test_failure_is_reported_even_after_ctrl_c(start_phalanx: TaskCommand, tmp_path: Path) -> None:
    fails = "until [ -e chief0.up ]; do sleep 0.1; done; echo the reason; exit 3"
    either = f"[ $0 = worker ] && {{ {fails}; }}; {NOTES}"
    launcher = start_phalanx("run", "--workers", 1, "--grace", 5, *script(either))
    wait_until((tmp_path / "asked").exists)
    launcher.send_signal(signal.SIGINT)
    _, stderr = launcher.communicate(timeout=250)
    assert launcher.returncode == 1
    assert "the reason" in stderr
    assert "worker-0 failed with exit code 3" in stderr


def test_terminal_shows_a_table_of_the_tasks(tmp_path: Path, environ: dict[str, str]) -> None:
    main, terminal = pty.openpty()
    command = [
        "run",
        "--workers",
        "1",
        "--ps",
        "1",
        *script("echo $0 says hi; [ $0 != ps ] || cat <> f"),
    ]
    os.mkfifo(tmp_path / "f")
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx", *command],
        cwd=tmp_path,
        env={**environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdout=terminal,
        stderr=terminal,
    ) as launcher:
        os.close(terminal)
        shown = read_terminal(main)
    assert launcher.returncode == 0
    last = shown.rpartition("task ")[2]
    for row in (r"chief-0 +done +chief says hi", r"worker-0 +done +worker says", r"ps-0 +ended"):
        assert re.search(row, last), shown
    assert "succeeded" in last


def read_terminal(main: int) -> str:
    """All that appears on a terminal until it is closed, without colours and movements."""
    data = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(main, 65536):
            data += chunk
    os.close(main)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode())


def test_closed_terminal_ends_the_job_with_sigterm(tmp_path: Path, environ: dict[str, str]) -> None:
    pid, main = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        command = [sys.executable, "-m", "phalanx", "run", "--", "sh", "-c", POLITE, "t", "0"]
        os.execve(sys.executable, command, environ)
    wait_until((tmp_path / "t0.up").exists)
    os.close(main)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert (tmp_path / "t0.asked").exists()


def test_killed_evaluator_does_not_fail_the_job(phalanx: Phalanx) -> None:
    done = phalanx(
        *("run", "--evaluator"),
        *script("[ $0 != evaluator ] || kill -9 $$; [ $0 = evaluator ] || sleep 6"),
    )
    assert done.returncode == 0, done.stderr
    assert "evaluator-0 was killed by SIGKILL" in done.stderr
    assert "restart 1 of 3" in done.stderr


def test_stopped_task_is_killed_and_named(phalanx: Phalanx) -> None:
    done = phalanx(
        *("run", "--workers", 1, "--stop-limit", "2s", "--restarts", 1),
        *script(
            "[ $0 = chief ] && { sleep 15; exit; }; [ -e once ] || { touch once; kill -STOP $$; }"
        ),
    )
    assert done.returncode == 0, done.stderr
    assert "worker-0 was stopped (SIGSTOP) for" in done.stderr
    assert "restart 1 of 1" in done.stderr
    done = phalanx("run", "--stop-limit", "2s", *script("kill -STOP $$"))
    assert done.returncode == 1
    assert "chief-0 was stopped (SIGSTOP) for" in done.stderr


def test_run_without_progress_dumps_its_stacks_and_is_restarted(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    program = tmp_path / "hang.py"
    program.write_text(
        "import faulthandler, os, pathlib, signal, time\n"
        "from phalanx.cluster.progress import RunProgress\n"
        "faulthandler.register(signal.SIGUSR2)\n"
        "if pathlib.Path('once').exists(): raise SystemExit\n"
        "pathlib.Path('once').touch()\n"
        "RunProgress('chief-0', 7).write(pathlib.Path(os.environ['PHALANX_PROGRESS_FILE']))\n"
        "def this_function_hangs(): time.sleep(600)\n"
        "this_function_hangs()\n"
    )
    done = phalanx("run", "--hang-limit", "3s", "--restarts", 1, "--log-dir", "logs", program)
    assert done.returncode == 0, done.stderr
    assert "the chief has reported no step for" in done.stderr
    assert "this_function_hangs" in (tmp_path / "logs/chief-0.log").read_text()


def test_bug_that_repeats_ends_the_job(phalanx: Phalanx, tmp_path: Path) -> None:
    program = tmp_path / "bug.py"
    program.write_text("raise ValueError('no such layer')\n")
    done = phalanx("run", "--restarts", 5, program)
    assert done.returncode == 1
    assert "'ValueError: no such layer' before any step, as the time before" in done.stderr
    assert "restart 2 of 5" not in done.stderr
