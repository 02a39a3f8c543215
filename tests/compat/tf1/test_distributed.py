"""TensorLayer's module: how evaluators end."""

import socket
import threading
import time
from collections.abc import Callable

from phalanx.compat.tf1 import distributed


def test_evaluator_waits_until_no_task_listens_and_it_is_idle() -> None:
    trainer = socket.create_server(("localhost", 0))
    address = f"localhost:{trainer.getsockname()[1]}"
    is_evaluating = threading.Event()

    def read_cpu() -> float:
        return time.monotonic() if is_evaluating.is_set() else 0.0

    waiting = start_waiting(address, 0.5, read_cpu)
    waiting.join(1.5)
    assert waiting.is_alive(), "a task trains"
    is_evaluating.set()
    trainer.close()
    waiting.join(1.5)
    assert waiting.is_alive(), "the last checkpoint is evaluated"
    is_evaluating.clear()
    waiting.join(60)
    assert not waiting.is_alive()


def start_waiting(address: str, seconds: float, read_cpu: Callable[[], float]) -> threading.Thread:
    args = ([address], seconds, read_cpu)
    waiting = threading.Thread(target=distributed._wait_for_end, args=args, daemon=True)
    waiting.start()
    return waiting


def test_evaluator_waits_for_tasks_that_start_later() -> None:
    with socket.create_server(("localhost", 0)) as held:
        port = held.getsockname()[1]
    waiting = start_waiting(f"localhost:{port}", 0.1, lambda: 0.0)
    waiting.join(1.0)
    assert waiting.is_alive(), "no task has started"
    with socket.create_server(("localhost", port)):
        waiting.join(1.0)
    waiting.join(60)
    assert not waiting.is_alive()
