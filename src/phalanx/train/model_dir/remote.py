"""A model_dir where TensorFlow cannot write: it writes to a copy here, which is kept in step.

TensorFlow 2.21 reads and writes this machine's files and gs://. For hdfs:// the chief works in a
temporary directory; what is new in it goes to HDFS every few seconds and at the end, and a run that
is taken up again begins with what is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx.errors import PhalanxError, TrainingError
from phalanx.records.storage import filesystem_of, writing

if TYPE_CHECKING:
    from phalanx.train.runner import Result

ResultT = TypeVar("ResultT", bound="Result")

LOG = logging.getLogger("phalanx")

STAGED = ("hdfs", "viewfs")
EVALUATIONS = "eval"
_EVERY_SECONDS = 10.0
_END_SECONDS = 60.0

# What is being written, by TensorFlow and by us.
_UNFINISHED = re.compile(r"(^|/)\.|_temp/|\.tmp|\.new$")
# Whoever sees one of these relies on all other files being there.
_LAST = ("checkpoint", "status.json")


@dataclass
class Mirror:
    """A directory here and one on another file system, which are made equal in one direction.

        Mirror("hdfs://namenode:8020/models/digits", "digits").pull()

    `mine` says which files, by their names in the directory, this process writes: `push` takes
    those, `pull` the others.
    """

    remote: str
    local: str
    mine: Callable[[str], bool] = lambda name: False
    _known: dict[str, Any] = field(default_factory=dict)

    def pull(self, *, everything: bool = False) -> int:
        """Fetch what others have written since the last time; returns how many files."""
        filesystem, root = filesystem_of(self.remote)
        found = filesystem.find(root, detail=True) if filesystem.exists(root) else {}
        names = {path[len(root.rstrip("/")) + 1 :]: info for path, info in found.items()}
        fetched = 0
        for name in sorted(names, key=_order):
            info = names[name]
            mark = (info["size"], info.get("modification_time") or info.get("created"))
            if _UNFINISHED.search(name) or self._known.get(name) == mark:
                continue
            if self.mine(name) and not everything:
                continue
            target = Path(self.local, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            new = target.with_name(f".{target.name}.new")
            try:
                filesystem.get_file(info["name"], str(new))
            except FileNotFoundError:
                continue  # an old checkpoint that its writer has removed meanwhile
            new.replace(target)
            self._known[name] = _mark(target) if self.mine(name) else mark
            fetched += 1
        return fetched

    def push(self) -> int:
        """Send what is new, then remove there what is gone here; returns how many were sent."""
        here = {
            str(path.relative_to(self.local)): path
            for path in Path(self.local).rglob("*")
            if path.is_file()
        }
        mine = [name for name in here if self.mine(name) and not _UNFINISHED.search(name)]
        sent = 0
        for name in sorted(mine, key=_order):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                mark = _mark(here[name])
                if self._known.get(name) != mark:
                    self._send(name, here[name])
                    self._known[name] = mark
                    sent += 1
        filesystem, root = filesystem_of(self.remote)
        for name in [each for each in self._known if self.mine(each) and each not in here]:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm(f"{root.rstrip('/')}/{name}")
            del self._known[name]
        return sent

    def _send(self, name: str, path: Path) -> None:
        target = f"{self.remote.rstrip('/')}/{name}"
        with path.open("rb") as file, writing(target) as there:
            shutil.copyfileobj(file, there, 1 << 20)


def is_staged(directory: str | None) -> bool:
    """Whether it is on a file system that TensorFlow does not know and we do."""
    return bool(directory) and str(directory).partition("://")[0].lower() in STAGED


@contextlib.contextmanager
def staged(remote: str, evaluates: bool) -> Iterator[str]:
    """A directory here in place of one there, for the chief or, if `evaluates`, the evaluator."""
    local = tempfile.mkdtemp(prefix="phalanx-model-")
    mirror = Mirror(remote, local, lambda name: name.startswith(f"{EVALUATIONS}/") == evaluates)
    LOG.info("model_dir is %s; TensorFlow works on a copy in %s", remote, local)
    try:
        mirror.pull(everything=True)
    except BaseException:
        shutil.rmtree(local, ignore_errors=True)
        raise
    over = threading.Event()
    thread = threading.Thread(
        target=_keep_in_step, args=(mirror, over, evaluates), name="phalanx-staging", daemon=True
    )
    thread.start()
    try:
        yield local
    finally:
        over.set()
        thread.join(_END_SECONDS)
        try:
            mirror.push()
        except (OSError, RuntimeError, PhalanxError) as error:
            raise TrainingError(
                f"the model was not copied to {remote} ({_first_line(error)}): it is in {local}"
            ) from error
        shutil.rmtree(local, ignore_errors=True)


def _keep_in_step(mirror: Mirror, over: threading.Event, pulls: bool) -> None:
    while not over.wait(_EVERY_SECONDS):
        try:
            if pulls:
                mirror.pull()
            mirror.push()
        except (OSError, RuntimeError, PhalanxError) as error:
            LOG.warning("%s is not up to date: %s", mirror.remote, _first_line(error))


def there_again(result: ResultT, remote: str, local: str) -> ResultT:
    """A result whose paths are the remote ones."""
    return dataclasses.replace(
        result,
        model_dir=result.model_dir.replace(local, remote.rstrip("/"), 1),
        checkpoint=result.checkpoint.replace(local, remote.rstrip("/"), 1),
    )


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _order(name: str) -> tuple[int, str]:
    last = name.rpartition("/")[2]
    return (_LAST.index(last) + 1 if last in _LAST else 0, name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
