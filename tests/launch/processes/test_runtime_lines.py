"""What TensorFlow's runtime logs stays off the screen; what programs print does not."""

import subprocess
import sys
from typing import Any

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState, TaskStatus
from phalanx.launch.processes.runtime_lines import QuietObserver, is_runtime_line

CHIEF, WORKER = Task(Role.CHIEF), Task(Role.WORKER)
RUNTIME = "I0000 00:00:1794966889.667972   18019 port.cc:153] oneDNN custom operations are on."


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def output(self, task: Task, lines: list[str]) -> None:
        self.calls.append((task, lines))

    def changed(self, status: TaskStatus) -> None:
        self.calls.append(status.last_line)

    def note(self, message: str) -> None:
        self.calls.append(message)


@pytest.mark.parametrize(
    "line",
    [
        RUNTIME,
        "E0000 00:00:1794966912.108531   18020 cuda_platform.cc:52] failed call to cuInit",
        "2026-11-18 01:52:12.123456: W tensorflow/core/framework/op_kernel.cc:1816] OP_REQUIRES",
        "2026-11-18 01:52:12.1: I external/local_xla/xla/stream_executor/dnn.h:12] loaded",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "To enable the following instructions: AVX2 FMA, rebuild TensorFlow",
        "ERROR:tensorflow:Worker /job:worker/replica:0/task:1 failed with UnavailableError()",
    ],
)
def test_lines_of_the_runtime_are_recognized(line: str) -> None:
    assert is_runtime_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "12:00:01 step 100 of 400: loss = 0.3",
        "INFO:tensorflow:loss = 0.3, step = 100",
        "WARNING:absl:the program's own warning",
        "I1118 01:52:12.123456 140735 train.py:12] a line that a program logs through absl",
        "F0000 00:00:1794966889.667972   18019 check.cc:1] Check failed: a fatal error",
        "2026-11-18 01:52:12,123 INFO train.py: started",
    ],
)
def test_lines_of_programs_and_fatal_errors_are_shown(line: str) -> None:
    assert not is_runtime_line(line)


def test_observer_hides_messages_of_the_runtime_with_their_further_lines() -> None:
    recorder = Recorder()
    quiet = QuietObserver(recorder)
    quiet.output(CHIEF, [RUNTIME, "\t [[{{node Sum}}]]"])
    quiet.output(WORKER, ["  indented by the program"])
    quiet.output(CHIEF, ["  still of the runtime", "hello", "  indented by the program"])
    assert recorder.calls == [
        (WORKER, ["  indented by the program"]),
        (CHIEF, ["hello", "  indented by the program"]),
    ]


def test_lines_with_which_a_message_of_grpc_continues_are_hidden() -> None:
    recorder = Recorder()
    quiet = QuietObserver(recorder)
    message = [
        RUNTIME,
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1:",
        ':UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}',
        "\t [[{{node while_1}}]]",
    ]
    quiet.output(CHIEF, message)
    assert recorder.calls == []
    quiet.changed(TaskStatus(CHIEF, TaskState.RUNNING, last_line=message[-1]))
    assert recorder.calls == [""]


def test_status_keeps_the_last_line_of_the_program() -> None:
    recorder = Recorder()
    quiet = QuietObserver(recorder)
    for line in (RUNTIME, "loading", RUNTIME):
        quiet.changed(TaskStatus(CHIEF, TaskState.RUNNING, last_line=line))
    assert recorder.calls == ["", "loading", "loading"]


def test_hidden_lines_are_shown_when_a_task_is_restarted() -> None:
    recorder = Recorder()
    quiet = QuietObserver(recorder)
    quiet.output(CHIEF, [RUNTIME])
    quiet.changed(TaskStatus(CHIEF, TaskState.RUNNING, restarts=1))
    assert recorder.calls == [(CHIEF, [RUNTIME]), ""]


def test_tensorflow_is_imported_without_a_word() -> None:
    program = (
        "import sys; from phalanx.launch.processes.runtime_lines import import_tensorflow;"
        "import_tensorflow();"
        "import tensorflow as tf; tf.ones(1); print('mine', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stderr == "mine\n"
