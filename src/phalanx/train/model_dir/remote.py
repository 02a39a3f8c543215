"""A model_dir on a file system that TensorFlow cannot write to.

TensorFlow 2.21 reads and writes local files and gs://. For hdfs:// the chief works in a local
temporary directory. New files are copied to HDFS every few seconds and at the end of the run, and a
run that resumes first copies the files from HDFS.
"""

import contextlib
import logging
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from phalanx.errors import PhalanxError, TrainingError
from phalanx.records.storage import filesystem_of, writing
from phalanx.train.model_dir.layout import CHECKPOINT_LIST, EVALUATION_FOLDER, STATUS
from phalanx.train.model_dir.lease import check_lease

LOG = logging.getLogger("phalanx")

Fingerprint: TypeAlias = tuple[object, object]
"""The size and the modification time of a file."""

_SCHEMES = ("hdfs", "viewfs")
_SYNC_SECONDS = 10.0
_JOIN_SECONDS = 60.0

# Names of files that TensorFlow or Phalanx is still writing.
_UNFINISHED = re.compile(r"(^|/)\.|_temp/|\.tmp|\.new$")
# Readers of these files expect that all others are complete: they are copied last, in this order.
_LAST = (CHECKPOINT_LIST, STATUS)


@dataclass
class Mirror:
    """A local copy of a remote directory.

        Mirror("hdfs://namenode:8020/models/digits", "digits").pull()

    Args:
        remote: The URL of the remote directory.
        local: The path of the local directory.
        mine: Takes the name of a file in the directory and returns whether this process writes
            it. `push` copies these files, `pull` all others. By default, none is.
    """

    remote: str
    local: str
    mine: Callable[[str], bool] = lambda name: False
    _known: dict[str, Fingerprint] = field(default_factory=dict)

    def pull(self, *, everything: bool = False) -> int:
        """Copy changed remote files (with `everything`, also `mine`), and return their number."""
        filesystem, root = filesystem_of(self.remote)
        found = filesystem.find(root, detail=True) if filesystem.exists(root) else {}
        names = {path[len(root.rstrip("/")) + 1 :]: info for path, info in found.items()}
        fetched = 0
        for name in sorted(names, key=_order):
            info = names[name]
            fingerprint = (info["size"], info.get("modification_time") or info.get("created"))
            if _UNFINISHED.search(name) or self._known.get(name) == fingerprint:
                continue
            if self.mine(name) and not everything:
                continue
            target = Path(self.local, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            new = target.with_name(f".{target.name}.new")
            try:
                filesystem.get_file(info["name"], str(new))
            except FileNotFoundError:
                continue  # The chief has deleted this old checkpoint since the listing.
            new.replace(target)
            self._known[name] = _fingerprint(target) if self.mine(name) else fingerprint
            fetched += 1
        return fetched

    def push(self) -> int:
        """Copy changed local files and return their number; delete remote files of deleted ones."""
        check_lease(self.remote)
        files = {
            str(path.relative_to(self.local)): path
            for path in Path(self.local).rglob("*")
            if path.is_file()
        }
        mine = [name for name in files if self.mine(name) and not _UNFINISHED.search(name)]
        sent = 0
        for name in sorted(mine, key=_order):
            with contextlib.suppress(FileNotFoundError):  # Deleted since the listing.
                fingerprint = _fingerprint(files[name])
                if self._known.get(name) != fingerprint:
                    self._send(name, files[name])
                    self._known[name] = fingerprint
                    sent += 1
        filesystem, root = filesystem_of(self.remote)
        for name in [each for each in self._known if self.mine(each) and each not in files]:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm(f"{root.rstrip('/')}/{name}")
            del self._known[name]
        return sent

    def _send(self, name: str, path: Path) -> None:
        target = f"{self.remote.rstrip('/')}/{name}"
        with path.open("rb") as file, writing(target) as output:
            shutil.copyfileobj(file, output, 1 << 20)


def needs_local_copy(directory: str | None) -> bool:
    """Whether a directory is on a file system that Phalanx can write to and TensorFlow cannot."""
    return bool(directory) and str(directory).partition("://")[0].lower() in _SCHEMES


@contextlib.contextmanager
def open_local_copy(remote: str, evaluates: bool) -> Iterator[str]:
    """Work on a local copy: the evaluator (`evaluates`) writes evaluations, the chief the rest."""
    local = tempfile.mkdtemp(prefix="phalanx-model-")
    folder = f"{EVALUATION_FOLDER}/"
    mirror = Mirror(remote, local, lambda name: name.startswith(folder) == evaluates)
    LOG.info("model_dir is %s; TensorFlow works on a local copy in %s", remote, local)
    try:
        mirror.pull(everything=True)
    except BaseException:
        shutil.rmtree(local, ignore_errors=True)
        raise
    stop = threading.Event()
    thread = threading.Thread(target=_synchronize, args=(mirror, stop, evaluates), daemon=True)
    thread.start()
    try:
        yield local
    finally:
        stop.set()
        thread.join(_JOIN_SECONDS)
        try:
            mirror.push()
        except (OSError, RuntimeError, PhalanxError) as error:
            raise TrainingError(
                f"the model was not copied to {remote} ({_first_line(error)}): it is in {local}"
            ) from error
        shutil.rmtree(local, ignore_errors=True)


def _synchronize(mirror: Mirror, stop: threading.Event, pulls: bool) -> None:
    while not stop.wait(_SYNC_SECONDS):
        try:
            if pulls:
                mirror.pull()
            mirror.push()
        except (OSError, RuntimeError, PhalanxError) as error:
            LOG.warning("%s is not up to date: %s", mirror.remote, _first_line(error))


def _fingerprint(path: Path) -> Fingerprint:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _order(name: str) -> tuple[int, str]:
    last = name.rpartition("/")[2]
    return (_LAST.index(last) + 1 if last in _LAST else 0, name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
