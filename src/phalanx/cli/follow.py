"""Follow a job that its backend runs, and report how it ended."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import click
from rich.text import Text

from phalanx.cli.display import PlainDisplay
from phalanx.cli.terminal import make_console
from phalanx.cluster.spec import Task
from phalanx.errors import LaunchError
from phalanx.launch.base import Handle, JobResult

_OUTAGE_LIMIT_SECONDS = 300.0
_RETRY_SECONDS = 2.0
# A request that fails only after this time had a connection before: it begins a new outage.
_CONNECTED_SECONDS = 90.0


def follow_job(name: str, handle: Handle) -> int:
    """Print all output until the job ends, and return its exit code; Ctrl-C does not end it."""
    tasks = [status.task for status in handle.status()]
    try:
        _follow_output(handle, tasks)
        result = _wait(handle)
    except KeyboardInterrupt:
        click.echo(f"\nphalanx: {name} continues; end it with: phalanx cancel {name}", err=True)
        return 130
    print_result(result, f"{name} {result.describe()}")
    return result.exit_code


def print_output(handle: Handle, tasks: Sequence[Task]) -> None:
    """Print the output so far, task by task, each line with the name of its task."""
    display = PlainDisplay(tasks)
    for task in tasks:
        for line in handle.logs(task):
            display.output(task, [line])


def read_lines(handle: Handle, task: Task, note: Callable[[str], None]) -> Iterator[str]:
    """Yield the task's output until it ends, across outages of the backend."""
    shown = 0
    outage = _Outage(note)
    while True:
        try:
            for line in islice(handle.logs(task, follow=True), shown, None):
                shown += 1
                yield line
            return
        except LaunchError as error:
            outage.wait(error)


def print_message(message: str) -> None:
    """Print a message of Phalanx to stderr, apart from the job's output."""
    click.echo(f"phalanx: {message}", err=True)


def _print_outcome(message: str, succeeded: bool) -> None:
    text = Text("phalanx: ").append(message, style="bold green" if succeeded else "bold red")
    make_console(stderr=True).print(text, soft_wrap=True)


def print_result(result: JobResult, sentence: str) -> None:
    """Print the last lines of the task that failed, if any, and the sentence."""
    if result.last_lines:
        print_message(f"the last lines of {result.failed}:")
        click.echo("".join(f"    {line}\n" for line in result.last_lines), err=True, nl=False)
    _print_outcome(sentence, result.exit_code == 0)


def _follow_output(handle: Handle, tasks: Sequence[Task]) -> None:
    display = PlainDisplay(tasks)
    failures: list[Exception] = []
    noted: set[str] = set()

    def note_once(message: str) -> None:
        """An outage concerns the readers of all tasks, and is reported once."""
        if message not in noted:
            noted.add(message)
            display.note(message)

    def read(task: Task) -> None:
        try:
            for line in read_lines(handle, task, note_once):
                display.output(task, [line])
        except Exception as error:  # raised again by the main thread, such as a closed pipe
            failures.append(error)

    # Daemon threads, so that Ctrl-C ends this command at once.
    threads = [threading.Thread(target=read, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(0.2)
    if failures:
        raise failures[0]


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

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
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
        time.sleep(_RETRY_SECONDS)
        self._retried_at = time.monotonic()
