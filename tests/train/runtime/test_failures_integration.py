"""However a run ends, every task exits in time and says why."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--global-batch-size", "30", "--log-steps", "10")
LONG = (*FLAGS, "--train-steps", "1000000")


@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        ("c w", "worker-0"),
        pytest.param("c w p", "ps-0", marks=pytest.mark.slow),
        pytest.param("c w p", "chief-0", marks=pytest.mark.slow),
    ],
)
def test_sigterm_to_any_task_saves_and_exits_with_75(
    shape: str, asked: str, start_cluster: Any, tmp_path: Path
) -> None:
    tasks = start_cluster(shape, "--model-dir", str(tmp_path), *LONG)
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes[asked].send_signal(signal.SIGTERM)
    codes = tasks.wait()
    assert set(codes.values()) == {75}, codes
    log = tasks.log("chief-0")
    assert "run it again" in log
    step = int(log.rpartition("saved step ")[2].split()[0])
    assert step > 0
    assert (tmp_path / f"model.ckpt-{step}.index").exists()


@pytest.mark.parametrize("shape", ["c w w", pytest.param("c w w p", marks=pytest.mark.slow)])
def test_the_chief_shows_the_error_of_a_worker_once(
    shape: str, start_cluster: Any, tmp_path: Path
) -> None:
    tasks = start_cluster(
        shape,
        "--model-dir",
        str(tmp_path),
        *FLAGS,
        "--train-steps",
        "20",
        "--fail-on",
        "worker-1",
    )
    codes = tasks.wait()
    assert all(code == 1 for code in codes.values()), codes
    log = tasks.log("chief-0")
    assert "worker-1 failed" in log
    assert log.count("ZeroDivisionError: this is the user's own mistake") == 1
    assert "worker-1" in tasks.log("worker-0") or "chief-0 failed" in tasks.log("worker-0")


@pytest.mark.slow
def test_every_task_shows_why_the_chief_failed(start_cluster: Any, tmp_path: Path) -> None:
    tasks = start_cluster(
        "c w p", "--model-dir", str(tmp_path), *FLAGS, "--train-steps", "20", "--fail-on", "chief-0"
    )
    codes = tasks.wait()
    assert all(codes.values()), codes
    mistake = "ZeroDivisionError: this is the user's own mistake"
    assert tasks.log("chief-0").rpartition("phalanx: ")[2].count(mistake) == 1
    for task in ("worker-0", "ps-0"):
        assert f"phalanx: chief-0 failed: {mistake}\n" in tasks.log(task)


@pytest.mark.slow
def test_the_other_tasks_exit_when_the_chief_is_killed(start_cluster: Any, tmp_path: Path) -> None:
    tasks = start_cluster("c w p", "--model-dir", str(tmp_path), *FLAGS, "--train-steps", "1000000")
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes["chief-0"].kill()
    codes = tasks.wait()
    assert codes["worker-0"] == codes["ps-0"] == 1
    assert "the chief (chief-0 at 127.0.0.1:" in tasks.log("ps-0")
    assert "stopped responding" in tasks.log("ps-0")


@pytest.mark.slow
def test_the_chief_exits_when_the_last_worker_is_lost(start_cluster: Any, tmp_path: Path) -> None:
    tasks = start_cluster(
        "c w p", "--model-dir", str(tmp_path), *LONG, "--wait-seconds", "40", "--save-steps", "10"
    )
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes["worker-0"].kill()
    codes = tasks.wait()
    assert codes["chief-0"] == codes["ps-0"] == 1
    assert "no worker has responded for 40 s: worker-0 at 127.0.0.1:" in tasks.log("chief-0")


@pytest.mark.slow
def test_the_run_fails_when_no_worker_can_read_a_shard(start_cluster: Any, tmp_path: Path) -> None:
    tasks = start_cluster(
        "c w w p", "--model-dir", str(tmp_path), *FLAGS, "--epochs", "500", "--wait-seconds", "20"
    )
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes["worker-1"].kill()
    codes = tasks.wait(240)
    assert codes["chief-0"] == codes["worker-0"] == codes["ps-0"] == 1
    assert "though some are running; lost: worker-1 at 127.0.0.1:" in tasks.log("chief-0")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--async", "--sync"])
def test_the_run_fails_when_a_parameter_server_is_lost(
    mode: str, start_cluster: Any, tmp_path: Path
) -> None:
    tasks = start_cluster("c w p p", "--model-dir", str(tmp_path), *LONG, mode)
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes["ps-1"].kill()
    codes = tasks.wait(240)
    assert codes["chief-0"] == codes["worker-0"] == codes["ps-0"] == 1
    assert "a peer stopped responding" in tasks.log("chief-0")


@pytest.mark.parametrize(
    ("shape", "missing"),
    [
        ("c w p", "ps-0"),
        pytest.param("c w w", "worker-1", marks=pytest.mark.slow),
        pytest.param("c w p", "chief-0", marks=pytest.mark.slow),
    ],
)
def test_a_missing_peer_is_named(
    shape: str, missing: str, start_cluster: Any, tmp_path: Path
) -> None:
    tasks = start_cluster(
        shape, "--model-dir", str(tmp_path), *FLAGS, "--train-steps", "20", "--wait-seconds", "4",
        without=missing,
    )  # fmt: skip
    waiter = "ps-0" if missing == "chief-0" else "chief-0"
    assert tasks.processes[waiter].wait(240) == 1
    assert "gave up after 4 s waiting for" in tasks.log(waiter)
    assert missing in tasks.log(waiter).rpartition("gave up")[2]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["at the limit", "by SIGTERM"])
def test_a_peer_that_accepts_and_never_answers_is_given_up(
    ends: str, start_cluster: Any, tmp_path: Path
) -> None:
    seconds = "20" if ends == "at the limit" else "1000"
    flags = ("--model-dir", str(tmp_path), *FLAGS, "--train-steps", "20", "--wait-seconds", seconds)
    tasks = start_cluster("c w", *flags, without="worker-0")
    with socket.create_server(find_address(tasks, "worker-0")):
        tasks.wait_for_line("chief-0", "accepts connections, but does not answer")
        if ends == "by SIGTERM":
            tasks.processes["chief-0"].send_signal(signal.SIGTERM)
        code = tasks.processes["chief-0"].wait(240)
    if ends == "by SIGTERM":
        assert code == -signal.SIGTERM
    else:
        assert code == 1
        assert "gave up after 20 s waiting for worker-0 at" in tasks.log("chief-0")


@pytest.mark.slow
def test_a_peer_that_falls_silent_while_the_others_join_is_given_up(
    start_cluster: Any, tmp_path: Path
) -> None:
    flags = ("--model-dir", str(tmp_path), *FLAGS, "--train-steps", "20", "--wait-seconds", "20")
    tasks = start_cluster("c w", *flags, without="worker-0")
    with socket.create_server(find_address(tasks, "worker-0")) as server:
        server.settimeout(240)
        server.accept()[0].close()
        assert tasks.processes["chief-0"].wait(240) == 1
    assert "a peer that does not answer is given up after 20 s" in tasks.log("chief-0")
    assert "Timeout (0:00:20)!" in tasks.log("chief-0")


def find_address(tasks: Any, task: str) -> tuple[str, int]:
    role, _, index = task.rpartition("-")
    tf_config = json.loads(tasks.commands["chief-0"][1]["TF_CONFIG"])
    host, _, port = tf_config["cluster"][role][int(index)].rpartition(":")
    return host, int(port)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["chief-0", "worker-0"])
def test_an_all_reduce_goes_on_after_a_trainer_was_stopped(
    stopped: str, start_cluster: Any, tmp_path: Path
) -> None:
    flags = ("--model-dir", str(tmp_path), *FLAGS, "--train-steps", "400", "--slow", "0.02")
    tasks = start_cluster("c w", *flags)
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes[stopped].send_signal(signal.SIGSTOP)
    time.sleep(30)
    tasks.processes[stopped].send_signal(signal.SIGCONT)
    tasks.check()


@pytest.mark.slow
def test_an_exchange_that_takes_too_long_ends_the_run(start_cluster: Any, tmp_path: Path) -> None:
    flags = ("--model-dir", str(tmp_path), *FLAGS, "--train-steps", "100000")
    tasks = start_cluster("c w", *flags, "--collective-seconds", "5")
    tasks.wait_for_line("chief-0", "Average examples/sec")
    tasks.processes["worker-0"].send_signal(signal.SIGSTOP)
    assert tasks.processes["chief-0"].wait(40) == 1
    assert "took longer than collective_seconds" in tasks.log("chief-0")


def test_the_evaluator_evaluates_the_final_checkpoint(start_cluster: Any, tmp_path: Path) -> None:
    tasks = start_cluster(
        "c w p e", "--model-dir", str(tmp_path), *FLAGS, "--train-steps", "60", "--save-steps", "20"
    )
    tasks.check()
    log = tasks.log("evaluator-0")
    assert "Evaluation of step 60" in log
    assert "METRICS {'loss'" in log
    assert "Evaluation" not in tasks.log("chief-0")
    assert list((tmp_path / "eval").glob("events.*"))


@pytest.mark.slow
def test_an_evaluator_that_is_preempted_says_so(start_cluster: Any, tmp_path: Path) -> None:
    """Exit code 0 would mean that it is done, and no launcher would start it again."""
    flags = ("--model-dir", str(tmp_path), *FLAGS, "--train-steps", "1000000")
    tasks = start_cluster("c e", *flags, "--save-steps", "50")
    tasks.wait_for_line("evaluator-0", "Evaluation of step")
    evaluator = tasks.processes["evaluator-0"]
    evaluator.terminate()
    assert evaluator.wait(60) == 75
    assert "the evaluator received SIGTERM: step" in tasks.log("evaluator-0")
