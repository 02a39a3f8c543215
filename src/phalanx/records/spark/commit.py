"""Writing a directory so that what is in it is whole: staged by tasks, published by the driver.

Tasks write below `_temporary`, which every reader passes over. When all are done the driver moves
the files that successful tasks told it of to their places, and writes `_SUCCESS`. A task that
failed, was killed, or ran twice leaves nothing; if the driver dies, `_SUCCESS` is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import DataError
from phalanx.records.directory import (
    list_all,
    make_directory,
    move_file,
    path_exists,
    remove,
    remove_empty_below,
    remove_if_empty,
    write_mark,
)
from phalanx.records.storage import is_remote

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
        if not is_remote(self.staging) and not path_exists(self.staging):
            raise DataError(f"the write to {self.directory} has ended: this task came too late")

    def commit(self, files: Sequence[Staged], *, overwrite: bool) -> None:
        """Publish the files; with `overwrite`, everything that was there before goes.

        What was there goes last, so that an error on the way loses nothing.
        """
        remove(f"{self.directory}/{SUCCESS}")
        before = list_all(self.directory) if overwrite else []
        self._publish(files)
        for path in before:
            if not path.startswith(f"{self.staging}/"):
                remove(path)
        self.end()
        if overwrite:
            remove_empty_below(self.directory)
        write_mark(f"{self.directory}/{SUCCESS}")

    def _publish(self, files: Sequence[Staged]) -> None:
        done = []
        try:
            for file in files:
                target = f"{self.directory}/{file.name}"
                done.append(target)
                move_file(file.path, target)
        except BaseException:
            for target in done:
                remove(target)
            raise

    def end(self) -> None:
        """Remove what was not published."""
        remove(self.staging)
        remove_if_empty(f"{self.directory}/{TEMPORARY}")
