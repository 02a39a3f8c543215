"""`launch_local`: calls a function in every task of a cluster of processes on this machine."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from phalanx.cluster.progress import read_progress
from phalanx.errors import WorkerError
from phalanx.launch.backends.local.launcher import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.backends.local.preload import TENSORFLOW
from phalanx.launch.base import JobResult
from phalanx.launch.functions.cell_output import CellOutput
from phalanx.launch.functions.task import CALL, VALUE, error_file, pickle_value
from phalanx.launch.guarded import plan_local_guard
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.private_files import write_atomically
from phalanx.launch.processes.handle import SupervisedHandle
from phalanx.launch.processes.runtime_lines import QuietObserver
from phalanx.launch.termination import GracePeriods

T = TypeVar("T")

_TASK = "phalanx.launch.functions.task"
# A function that names one of these will import TensorFlow.
_USES_TENSORFLOW = (b"tensorflow", b"keras", b"phalanx")
_GRACE_PERIODS = GracePeriods(grace=10.0)
_POLL_SECONDS = 0.2


def launch_local(
    function: Callable[..., T],
    *arguments: Any,
    workers: int = 0,
    ps: int = 0,
    chief: bool = True,
    evaluator: bool = False,
    restarts: int = 0,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
    log_dir: str | None = None,
) -> T:
    """Call a function in every task of a cluster of processes on this machine.

        def train():
            import phalanx

            return phalanx.run(Digits(), phalanx.RunConfig(train_steps=1000))

        result = phalanx.launch_local(train, workers=2, ps=1)

    For notebooks: the function and what it uses may be defined in cells. It runs in new processes,
    each with its own TF_CONFIG, and changes nothing here. What the tasks print appears in the cell,
    with a progress bar. To interrupt the cell ends all processes.

    Args:
        function: What every task calls.
        arguments: What it is called with.
        workers: The number of workers beside the chief.
        ps: The number of parameter servers.
        chief: Whether there is a chief; without one, worker 0 takes over its duties.
        evaluator: Whether to add a task that evaluates each new checkpoint.
        restarts: How often a task that fails is restarted.
        threads: The threads of each task; by default an equal share of the processors.
        environment: More environment variables of the tasks.
        time_limit: The seconds after which the job is ended.
        log_dir: A directory for the output of the tasks; by default it is only shown.

    Returns:
        What the function returned on the chief. A `phalanx.Result` comes without its model, which
        the checkpoint has.

    Raises:
        JobError: The job cannot be started, or the function cannot be sent to other processes.
        WorkerError: The function raised an exception in a task, or a task was killed. The message
            has the traceback.
        KeyboardInterrupt: The cell was interrupted. All processes have ended.
    """
    call = pickle_value((function, arguments), "the function")
    with tempfile.TemporaryDirectory(prefix="phalanx-") as name:
        folder = Path(name)
        write_atomically(folder / CALL, pickle.dumps(([os.fspath(p) for p in sys.path], call)))
        job = Job(
            "function",
            Program(ProgramKind.MODULE, _TASK, (name,)),
            chief=chief,
            workers=workers,
            ps=ps,
            evaluators=int(evaluator),
            restarts=restarts,
            threads=threads,
            environment=dict(environment or {}),
            time_limit=time_limit,
        )
        preload = TENSORFLOW if any(name in call for name in _USES_TENSORFLOW) else ()
        result = _run(job, folder, Path(log_dir) if log_dir else folder / "logs", preload)
        if result.exit_code:
            raise WorkerError(_describe_failure(result, folder))
        try:
            value: T = pickle.loads((folder / VALUE).read_bytes())
        except FileNotFoundError:
            raise WorkerError("the chief ended the function with sys.exit(): return") from None
    return value


def _run(job: Job, folder: Path, log_dir: Path, preload: tuple[str, ...]) -> JobResult:
    job.validate()
    output = CellOutput()
    guard = plan_local_guard(job, os.environ)
    if guard.warning:
        output.note(f"warning: {guard.warning}")
    progress_file = folder / "progress.json"
    with hold_ports(len(job.listening_tasks())) as ports:
        launcher = LocalLauncher(
            machine=Machine.inspect(),
            ports=ports,
            log_dir=log_dir,
            run_id=uuid.uuid4().hex,
            grace_periods=_GRACE_PERIODS,
            guard=guard.variables,
            progress_file=progress_file,
            preload=preload,
        )
        with _catch_interrupts() as interrupts:
            handle = launcher.submit(launcher.plan(job), QuietObserver(output))
            try:
                result = _wait(handle, output, progress_file, interrupts)
            finally:
                handle.cancel()
                handle.wait()
    if interrupts:
        raise KeyboardInterrupt
    return result


def _wait(
    handle: SupervisedHandle, output: CellOutput, progress_file: Path, interrupts: list[int]
) -> JobResult:
    """Show the output until the job ends. An interrupt cancels it, and a second one kills it."""
    seen = 0
    while (result := handle.wait(_POLL_SECONDS)) is None:
        output.show(read_progress(progress_file))
        if len(interrupts) > seen:
            seen = len(interrupts)
            handle.cancel(JobResult(128 + signal.SIGINT, "interrupted"))
            if seen > 1:
                handle.kill()
    output.show(read_progress(progress_file))
    return result


@contextmanager
def _catch_interrupts() -> Iterator[list[int]]:
    """Collect interrupts, instead of letting each raise a KeyboardInterrupt.

    In Python 3.11, one in `Thread.join` marks the thread as ended while it runs: the cell would
    return before its processes have ended.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)


def _describe_failure(result: JobResult, folder: Path) -> str:
    if result.failed is None:
        return f"the job {result.describe()}"
    try:
        text = (folder / error_file(result.failed)).read_text()
    except FileNotFoundError:
        text = "\n".join(("its last lines:", *result.last_lines)) if result.last_lines else ""
        return f"{result.reason}\n\n{text}".rstrip()
    return f"{result.failed} failed:\n\n{text}"
