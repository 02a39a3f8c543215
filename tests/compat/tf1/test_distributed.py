"""TensorLayer's module: how evaluators end."""

import socket
import threading

from phalanx.compat.tf1 import distributed


def test_evaluator_waits_until_no_task_listens_and_it_is_idle() -> None:
    trainer = socket.create_server(("localhost", 0))
    address = f"localhost:{trainer.getsockname()[1]}"
    may_rest = threading.Event()

    def evaluate() -> None:
        while not may_rest.is_set():
            pass

    waiting = threading.Thread(target=distributed._wait_for_end, args=([address], 0.5), daemon=True)
    evaluating = threading.Thread(target=evaluate, daemon=True)
    waiting.start()
    waiting.join(1.5)
    assert waiting.is_alive(), "a task trains"
    evaluating.start()
    trainer.close()
    waiting.join(1.5)
    assert waiting.is_alive(), "the last checkpoint is evaluated"
    may_rest.set()
    evaluating.join()
    waiting.join(60)
    assert not waiting.is_alive()


def test_evaluator_waits_for_tasks_that_start_later() -> None:
    with socket.create_server(("localhost", 0)) as held:
        port = held.getsockname()[1]
    args = ([f"localhost:{port}"], 0.1)
    waiting = threading.Thread(target=distributed._wait_for_end, args=args, daemon=True)
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive(), "no task has started"
    with socket.create_server(("localhost", port)):
        waiting.join(1.0)
    waiting.join(60)
    assert not waiting.is_alive()
