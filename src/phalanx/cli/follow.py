"""Following a job that somebody else looks after, and telling how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import click

from phalanx.cli.display import PlainDisplay
from phalanx.cluster.spec import Task
from phalanx.errors import LaunchError
from phalanx.launch.base import Handle, JobResult

# For so long a manager may fail to answer.
_PATIENCE_SECONDS = 300.0
_AGAIN_SECONDS = 2.0
# No answer takes so long: whoever has followed until then has heard something.
_ANSWER_SECONDS = 90.0


def follow(name: str, handle: Handle) -> int:
    """Show all output until the job is over; the exit code is the job's. Ctrl-C leaves it alone."""
    tasks = [status.task for status in handle.status()]
    try:
        show(handle, tasks, follow=True)
        result = _wait(handle)
    except KeyboardInterrupt:
        click.echo(f"\nphalanx: {name} goes on; end it with: phalanx cancel {name}", err=True)
        return 130
    tell_end(result, f"{name} {result.describe()}")
    return result.exit_code


def show(handle: Handle, tasks: Sequence[Task], follow: bool) -> None:
    """The output of these tasks, each line with its task's name; side by side while they run."""
    display = PlainDisplay(tasks)
    if not follow:
        for task in tasks:
            for line in handle.logs(task):
                display.output(task, [line])
        return
    failures: list[Exception] = []
    noted: set[str] = set()

    def note(message: str) -> None:
        """What all tasks' readers meet is said once."""
        if message not in noted:
            noted.add(message)
            display.note(message)

    def read(task: Task) -> None:
        try:
            for line in follow_lines(handle, task, note):
                display.output(task, [line])
        except Exception as error:  # for the one who waits below: nobody reads us any more, say
            failures.append(error)

    # Daemons, so that Ctrl-C ends this command and not the job.
    threads = [threading.Thread(target=read, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(0.2)
    if failures:
        raise failures[0]


def follow_lines(handle: Handle, task: Task, note: Callable[[str], None]) -> Iterator[str]:
    """The task's output until it is over, whether its manager always answers or not."""
    shown = 0
    outage = _Outage(note)
    while True:
        try:
            for line in islice(handle.logs(task, follow=True), shown, None):
                shown += 1
                yield line
            return
        except LaunchError as error:
            outage.bear(error)


def tell(message: str) -> None:
    """A line of our own, beside the job's output."""
    click.echo(f"phalanx: {message}", err=True)


def tell_end(result: JobResult, sentence: str) -> None:
    """The sentence in which the job ended, after the last words of whoever failed."""
    if result.last_lines:
        tell(f"the last lines of {result.failed}:")
        click.echo("".join(f"    {line}\n" for line in result.last_lines), err=True, nl=False)
    tell(sentence)


def _wait(handle: Handle) -> JobResult:
    outage = _Outage(tell)
    while True:
        try:
            result = handle.wait()
        except LaunchError as error:
            outage.bear(error)
        else:
            assert result is not None
            return result


class _Outage:
    """Of a manager that does not answer: the job goes on without it, and so do we for a while."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._asked = time.monotonic()
        self._failing_since: float | None = None

    def bear(self, error: LaunchError) -> None:
        """Wait until it is time to ask again; raise the error if that was done for long enough."""
        now = time.monotonic()
        if self._failing_since is None or now - self._asked > _ANSWER_SECONDS:
            self._failing_since = now
            self._note(f"{error}; trying again")
        elif now - self._failing_since > _PATIENCE_SECONDS:
            raise error
        time.sleep(_AGAIN_SECONDS)
        self._asked = time.monotonic()
