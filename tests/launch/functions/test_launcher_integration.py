"""A function that is called in the processes of a local cluster, as from a notebook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.servers.processes import TEST_RUN, wait_for

import phalanx
from phalanx.cluster.progress import RunProgress
from phalanx.launch.functions.cell_output import draw_progress

pytest.importorskip("cloudpickle", reason="pip install 'phalanx[notebook]'")


def test_result_is_that_of_the_chief_and_output_is_shown(capsys: Any) -> None:
    base = 40

    def add(number: int) -> tuple[str, int, int]:
        task = phalanx.detect().task
        print(f"I am {task}")
        return str(task), base + number, os.getpid()

    task, number, pid = phalanx.launch_local(add, 2, workers=2)
    assert (task, number) == ("chief-0", 42)
    assert pid != os.getpid()
    shown = capsys.readouterr().out
    assert all(f"{each}: I am {each}\n" in shown for each in ("chief-0", "worker-0", "worker-1"))


def test_without_a_chief_the_result_is_that_of_worker_0() -> None:
    assert phalanx.launch_local(lambda: str(phalanx.detect().task), chief=False, workers=2) == (
        "worker-0"
    )


def test_exception_comes_back_with_its_traceback(capsys: Any) -> None:
    def fail() -> None:
        if str(phalanx.detect().task) == "worker-0":
            raise ValueError("the learning rate is a potato")
        threading.Event().wait(60)

    with pytest.raises(phalanx.WorkerError) as found:
        phalanx.launch_local(fail, workers=1)
    message = str(found.value)
    assert message.startswith("worker-0 failed:\n\nTraceback")
    assert message.endswith("ValueError: the learning rate is a potato")
    assert "task.py" not in message


def test_killed_task_is_reported(tmp_path: Path) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(phalanx.WorkerError, match="SIGKILL"):
        phalanx.launch_local(die, log_dir=str(tmp_path))
    assert (tmp_path / "chief-0.log").exists()


def test_what_cannot_be_sent_is_an_error_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(phalanx.JobError, match="the function cannot be sent"):
        phalanx.launch_local(lambda: lock)
    with pytest.raises(phalanx.WorkerError, match="what the function returned cannot be sent"):
        phalanx.launch_local(threading.Lock)
    with pytest.raises(phalanx.JobError, match="ps but no worker"):
        phalanx.launch_local(print, ps=1)


def test_interrupt_ends_all_processes(tmp_path: Path) -> None:
    program = tmp_path / "cell.py"
    program.write_text(
        textwrap.dedent("""
        import os, sys, time
        from pathlib import Path
        import phalanx

        folder = sys.argv[1]
        def here():
            Path(folder, f"pid-{os.getpid()}").touch()
            time.sleep(600)

        try:
            phalanx.launch_local(here, workers=1)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """)
    )
    command = [sys.executable, str(program), str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TEST_RUN": TEST_RUN}
    )
    try:
        wait_for(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
        process.send_signal(signal.SIGINT)
        assert "interrupted" in process.communicate(timeout=120)[0]
    finally:
        process.kill()
        process.wait()
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_progress_is_escaped_html() -> None:
    progress = RunProgress("chief-0", 400, 1000, 0.021, 812.0, 65.0, "<b>training</b>")
    assert draw_progress(progress) == (
        '<div><progress value="400" max="1000"></progress> step 400 of 1,000, loss 0.021, '
        "812 examples/s, 1:05 left, &lt;b&gt;training&lt;/b&gt;</div>"
    )
    assert "<progress>" in draw_progress(RunProgress("chief-0", 4))
