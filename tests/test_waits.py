"""No wait without a limit: every call that can block for ever has a reason to, written down here.

The test reads the sources. It finds waits for threads, processes, queues, locks and connections
that are called without a timeout. It does not see waits inside of TensorFlow, which the limits of
connections and `--hang-limit` end, nor sockets whose timeout is set elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "phalanx"
# Without arguments, these wait for ever.
METHODS = {"wait", "join", "get", "result", "acquire", "communicate", "accept", "fetch"}
# Without the argument `timeout`, these do.
FUNCTIONS = {"run", "check_call", "check_output", "call", "urlopen", "create_connection"}
MODULES = {"subprocess", "urllib.request", "socket"}

ALLOWED = {
    "cli/chaos.py:_run": "a job may take as long as it likes",
    "cli/display.py:_run": "a daemon thread, which `finish` ends",
    "cli/follow.py:_wait": "a job may take as long as it likes",
    "cli/models.py:_export_and_load": "an export in a process of its own",
    "cli/run.py:_run": "a job may take as long as it likes",
    "cli/terminal.py:print_table": "no wait: what was captured",
    "compat/tf1/estimator/graph_hooks.py:make_metrics": "no wait: the value of a Keras metric",
    "data/pipeline.py:_load": "a thread that reads a file",
    "data/tensors.py:run_data_worker": "a server, which SIGTERM ends",
    "data/tensors.py:run_dispatcher": "a server, which SIGTERM ends",
    "launch/processes/relay.py:relay": "a task may take as long as it likes",
    "launch/containers/follow.py:follow_container": "a task may take as long as it likes",
    "launch/functions/cell_output.py:show": "no wait: the queue has something",
    "launch/functions/launcher.py:_run": "a job that is cancelled ends after its grace period",
    "records/spark/source.py:_task_context": "no wait: the context of a Spark task",
    "serving/batcher.py:_run": "the thread of a server, which its end wakes",
    "serving/server.py:accept": "called by the event loop when a client is there",
    "spark/job_controller.py:_accept": "a daemon thread, which `close` ends",
    "spark/stage.py:count_slots": "no wait: an option of Scala",
    "spark/stage.py:run_on_driver": "a job may take as long as it likes",
    "spark/stage.py:run_partition": "no wait: the context of a Spark task",
    "train/engines/lockstep.py:_wait": "a thread of this process, which `abandon` ends",
    "train/engines/lockstep.py:abandon": "a thread of this process, which traces the user's step",
    "train/engines/lockstep.py:resume": "a thread of this process, which traces the user's step",
    "train/engines/lockstep.py:run": "no wait: the results of threads that have ended",
    "train/model_dir/table_slices.py:_restore_large": "files, and connections with limits",
    "train/model_dir/table_slices.py:write_checkpoint": "files, and connections with limits",
    "train/runtime/background_calls.py:_run": "an idle daemon thread, which waits for a call",
    "train/runtime/peers.py:accept": "a daemon thread, which closing its socket ends",
    "train/runtime/program_calls.py:broadcast": "each message has a limit of its own",
    "train/runtime/ps_cluster.py:fetch": "a daemon thread; engines limit the time without steps",
    "train/step/user_step.py:compute_metrics": "no wait: the value of a Keras metric",
}


def find_waits() -> Iterator[tuple[str, int]]:
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _waits_for_ever(node):
                around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
                name = max(around, key=lambda f: f.lineno).name if around else "<module>"
                yield f"{path.relative_to(SOURCES)}:{name}", node.lineno


def _waits_for_ever(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "urlopen" and not _has_timeout(call)
    if not isinstance(function, ast.Attribute):
        return False
    receiver = ast.unparse(function.value)
    if function.attr in FUNCTIONS and receiver in MODULES:
        positional = function.attr == "create_connection" and len(call.args) > 1
        return not positional and not _has_timeout(call)
    # Context variables are written in capitals.
    is_variable = function.attr == "get" and receiver.split(".")[-1].isupper()
    return function.attr in METHODS and not call.args and not call.keywords and not is_variable


def _has_timeout(call: ast.Call) -> bool:
    return any(keyword.arg in ("timeout", None) for keyword in call.keywords)


def test_every_wait_has_a_limit_or_a_reason() -> None:
    found = dict(find_waits())
    new = {name: line for name, line in found.items() if name not in ALLOWED}
    assert not new, f"give these a timeout, or a reason in ALLOWED: {new}"
    assert not ALLOWED.keys() - found.keys(), "these no longer wait: remove them from ALLOWED"
