"""Follow a job that its backend runs, and report how it ended."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NoReturn

from phalanx.cli.display import PlainDisplay
from phalanx.cli.printing import echo, echo_output
from phalanx.cluster.spec import Task
from phalanx.errors import LaunchError, OutputGoneError
from phalanx.launch.base import Handle, JobResult, ReportingHandle, TaskState
from phalanx.printable import make_printable

_OUTAGE_LIMIT_SECONDS = 300.0
_RETRY_SECONDS = 2.0
# A request that fails only after this time had a connection before: it begins a new outage.
_CONNECTED_SECONDS = 90.0
# How often a backend is asked whether the job is over while its output is followed.
_RESULT_SECONDS = 5.0
_CLOSE_SECONDS = 1.0


def follow_job(name: str, handle: Handle) -> int:
    """Print all output until the job ends, and return its exit code; Ctrl-C does not end it."""
    tasks = [status.task for status in handle.status()]
    try:
        _follow_output(handle, tasks)
        result = _wait(handle)
    except KeyboardInterrupt:
        echo(f"\nphalanx: {name} continues; end it with: phalanx cancel {name}", err=True)
        return 130
    print_result(result, f"{name} {result.describe()}")
    return result.exit_code


def print_output(handle: Handle, tasks: Sequence[Task]) -> bool:
    """Print the output so far, task by task; return whether that of every task was there."""
    display = PlainDisplay(tasks)
    complete = True
    for task in tasks:
        try:
            for line in handle.logs(task):
                display.output(task, [line])
        except OutputGoneError as error:
            complete = False
            print_message(str(error))
    return complete


def exit_at_once(code: int) -> NoReturn:
    """Exit without waiting for threads that still read.

    Python ends daemon threads when it exits, and aborts if one is in a library written in Rust.
    """
    threads = [each for each in threading.enumerate() if each is not threading.current_thread()]
    if any(each.daemon for each in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def print_reports(
    handle: Handle, note: Callable[[str], None], closed: threading.Event | None = None
) -> None:
    """Print in the background why tasks do not start, if the backend reports it."""

    def read(reporting: ReportingHandle) -> None:
        outage = _Outage(lambda message: None, closed)
        with contextlib.suppress(LaunchError):
            while True:
                try:
                    for message in reporting.reports():
                        note(message)
                    return
                except LaunchError as error:
                    outage.wait(error)

    if isinstance(handle, ReportingHandle):
        threading.Thread(target=read, args=(handle,), daemon=True).start()


def read_lines(
    handle: Handle,
    task: Task,
    note: Callable[[str], None],
    closed: threading.Event | None = None,
) -> Iterator[str]:
    """Yield the task's output until it ends, across outages of the backend."""
    shown = 0
    outage = _Outage(note, closed)
    while True:
        try:
            for line in islice(handle.logs(task, follow=True), shown, None):
                shown += 1
                yield line
            return
        except OutputGoneError:
            raise
        except LaunchError as error:
            outage.wait(error)


def print_message(message: str) -> None:
    """Print a message of Phalanx to stderr, apart from the job's output."""
    echo(f"phalanx: {message}", err=True)


def _print_outcome(message: str, succeeded: bool) -> None:
    if not sys.stderr.isatty():
        print_message(message)
        return
    # Only a terminal has colours, and needs the time that this import takes.
    from rich.text import Text  # noqa: PLC0415

    from phalanx.cli.terminal import make_console  # noqa: PLC0415

    text = Text("phalanx: ").append(
        make_printable(message), style="bold green" if succeeded else "bold red"
    )
    make_console(stderr=True).print(text, soft_wrap=True)


def print_result(result: JobResult, sentence: str) -> None:
    """Print the last lines of the task that failed, if any, and the sentence."""
    if result.last_lines:
        print_message(f"the last lines of {result.failed}:")
        for line in result.last_lines:
            echo_output(f"    {line}", err=True)
    _print_outcome(sentence, result.exit_code == 0)


def _follow_output(handle: Handle, tasks: Sequence[Task]) -> None:
    """Print the output of the tasks until all have ended, or only the job has."""
    display = _ClosingDisplay(tasks)
    failures: list[Exception] = []

    def read(task: Task) -> None:
        try:
            for line in read_lines(handle, task, display.note_once, display.closed):
                display.output(task, line)
        except OutputGoneError as error:
            display.note_once(str(error))
        except Exception as error:  # raised again by the main thread, such as a closed pipe
            failures.append(error)

    # Daemon threads, so that Ctrl-C ends this command at once.
    readers = {task: threading.Thread(target=read, args=(task,), daemon=True) for task in tasks}
    for reader in readers.values():
        reader.start()
    print_reports(handle, display.note, display.closed)
    asked_at = time.monotonic()
    left_over: set[Task] = set()
    try:
        while alive := {task for task, reader in readers.items() if reader.is_alive()}:
            if failures:
                break
            readers[next(iter(alive))].join(0.2)
            if time.monotonic() - asked_at > _RESULT_SECONDS:
                # A task that still runs after the end of the job has output without an end.
                running = _find_left_over(handle)
                if alive <= running & left_over:
                    break
                asked_at, left_over = time.monotonic(), running
    finally:
        display.close()
    if failures:
        raise failures[0]


class _ClosingDisplay:
    """A display that threads write to. Python aborts if one of them writes while it exits."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._display = PlainDisplay(tasks)
        self._lock = threading.Lock()
        self._noted: set[str] = set()
        self.closed = threading.Event()

    def output(self, task: Task, line: str) -> None:
        with self._lock:
            if not self.closed.is_set():
                self._display.output(task, [line])

    def note(self, message: str) -> None:
        with self._lock:
            if not self.closed.is_set():
                self._display.note(message)

    def note_once(self, message: str) -> None:
        """An outage concerns the readers of all tasks, and is reported once."""
        with self._lock:
            known = message in self._noted
            self._noted.add(message)
        if not known:
            self.note(message)

    def close(self) -> None:
        # A thread that waits for a slow reader of the output keeps the lock.
        got = self._lock.acquire(timeout=_CLOSE_SECONDS)
        self.closed.set()
        if got:
            self._lock.release()


def _find_left_over(handle: Handle) -> set[Task]:
    """Return the tasks that run although the job is over; none if the backend does not answer."""
    try:
        if handle.wait(0) is None:
            return set()
        return {each.task for each in handle.status() if each.state is TaskState.RUNNING}
    except LaunchError:
        return set()


def _wait(handle: Handle) -> JobResult:
    outage = _Outage(print_message)
    while True:
        try:
            result = handle.wait()
        except LaunchError as error:
            outage.wait(error)
        else:
            assert result is not None
            return result


class _Outage:
    """Retries a backend that does not answer: the job continues without it."""

    def __init__(self, note: Callable[[str], None], closed: threading.Event | None = None) -> None:
        self._note = note
        # Set when nobody wants the output any more.
        self._closed = closed or threading.Event()
        self._retried_at = time.monotonic()
        self._failing_since: float | None = None

    def wait(self, error: LaunchError) -> None:
        """Wait before the next attempt, or raise the error if the outage has lasted too long."""
        now = time.monotonic()
        if self._failing_since is None or now - self._retried_at > _CONNECTED_SECONDS:
            self._failing_since = now
            self._note(f"{error}; trying again")
        elif now - self._failing_since > _OUTAGE_LIMIT_SECONDS:
            raise error
        if self._closed.wait(_RETRY_SECONDS):
            raise error
        self._retried_at = time.monotonic()
