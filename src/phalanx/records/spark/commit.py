"""Writing a directory so that what is in it is whole: staged by tasks, published by the driver.

Tasks write below `_temporary`, which every reader passes over. When all are done the driver moves
the files that successful tasks told it of to their places, and writes `_SUCCESS`. A task that
failed, was killed, or ran twice leaves nothing.

Files are moved one by one, but they appear together. While that goes on `_commit-ID` lists the new
files, and our readers pass over what is listed; then, in one go, that list goes or, if there is
something to replace, becomes one of the old files, until they are removed. So wherever the driver
dies, all that was there before is seen or all that was written, and `_SUCCESS` is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.errors import DataError
from phalanx.records.directory import (
    list_all,
    make_directory,
    move_file,
    remove,
    remove_empty_below,
    remove_if_empty,
    write_mark,
)
from phalanx.records.storage import UNFINISHED, exists, has_directories

TEMPORARY = "_temporary"
SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class Staged:
    """A whole file that waits to be published: where it is, and its name in the directory."""

    path: str
    name: str


@dataclass(frozen=True)
class Job:
    """One write into a directory."""

    directory: str
    id: str

    @property
    def staging(self) -> str:
        """Where its tasks write."""
        return f"{self.directory}/{TEMPORARY}/{self.id}"

    def begin(self) -> None:
        """Make room for the tasks. They themselves never do: one that goes on after the end must
        fail, and not leave a directory behind."""
        make_directory(self.staging)

    def check_open(self) -> None:
        """Has the job not ended yet? Object stores have no directories to ask for."""
        if has_directories(self.staging) and not exists(self.staging):
            raise DataError(f"the write to {self.directory} has ended: this task came too late")

    def commit(self, files: Sequence[Staged], *, overwrite: bool) -> None:
        """Publish the files; with `overwrite`, everything that was there before goes.

        What was there goes last, so that an error on the way loses nothing.
        """
        remove(f"{self.directory}/{SUCCESS}")
        before = list_all(self.directory) if overwrite else []
        before = [path for path in before if not path.startswith(f"{self.staging}/")]
        publish(self.directory, self.id, files)
        if before:
            names = (path.removeprefix(f"{self.directory}/") for path in before)
            hide(self.directory, self.id, names)
            for path in before:
                remove(path)
        show(self.directory, self.id)
        self.end()
        if overwrite:
            remove_empty_below(self.directory)
        write_mark(f"{self.directory}/{SUCCESS}")

    def end(self) -> None:
        """Remove what was not published."""
        remove(self.staging)
        remove_if_empty(f"{self.directory}/{TEMPORARY}")


def publish(directory: str, job: str, files: Sequence[Staged]) -> None:
    """Move files to their places, where they stay hidden until `show`; all of them or none."""
    hide(directory, job, (file.name for file in files))
    done = []
    try:
        for file in files:
            target = f"{directory}/{file.name}"
            done.append(target)
            move_file(file.path, target)
    except BaseException:
        for target in done:
            remove(target)
        show(directory, job)
        raise


def hide(directory: str, job: str, names: Iterable[str]) -> None:
    """From now on these files of a directory do not count; those that the job hid before do."""
    write_mark(f"{directory}/{UNFINISHED}{job}", json.dumps(list(names)).encode())


def show(directory: str, job: str) -> None:
    """From now on all that the job hid counts."""
    remove(f"{directory}/{UNFINISHED}{job}")
