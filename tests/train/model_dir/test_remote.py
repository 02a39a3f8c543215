"""A model_dir on a remote file system, and its local copy."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from phalanx.errors import TrainingError
from phalanx.train.model_dir import remote as remote_module
from phalanx.train.model_dir.remote import Mirror, open_local_copy


@pytest.fixture
def remote() -> Iterator[str]:
    """A directory of fsspec's file system in memory."""
    name = uuid.uuid4().hex
    yield f"memory://{name}"
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{name}"):
        memory.rm(f"/{name}", recursive=True)


def files(url: str) -> dict[str, bytes]:
    filesystem, root = fsspec.core.url_to_fs(url)
    found = filesystem.find(root)
    return {name[len(root) + 1 :]: filesystem.cat_file(name) for name in found}


def write(directory: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = directory / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_push_copies_changed_files_and_deletes_removed_ones(remote: str, tmp_path: Path) -> None:
    mirror = Mirror(remote, str(tmp_path), mine=lambda name: True)
    write(tmp_path, checkpoint="1", model_dot_1="a", events__log="x")
    assert mirror.push() == 3
    assert mirror.push() == 0
    (tmp_path / "model.1").unlink()
    write(tmp_path, checkpoint="2", model_dot_2="b")
    assert mirror.push() == 2
    assert files(remote) == {"checkpoint": b"2", "model.2": b"b", "events/log": b"x"}


def test_the_checkpoint_list_and_the_status_are_copied_last(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(Mirror, "_send", lambda self, name, path: sent.append(name))
    write(tmp_path, checkpoint="1", status_dot_json="{}", zebra="a", model_dot_1="b")
    Mirror(remote, str(tmp_path), mine=lambda name: True).push()
    assert sent == ["model.1", "zebra", "checkpoint", "status.json"]


def test_unfinished_files_are_not_copied(remote: str, tmp_path: Path) -> None:
    write(tmp_path, status_dot_json_dot_new="x", checkpoint_dot_tmp12="x", model_temp__part="x")
    assert Mirror(remote, str(tmp_path), mine=lambda name: True).push() == 0


def test_a_run_resumes_from_the_remote_files(remote: str) -> None:
    with open_local_copy(remote, evaluates=False) as local:
        write(Path(local), checkpoint="1", eval__events="mine?")
    assert files(remote) == {"checkpoint": b"1"}
    assert not Path(local).exists()
    with open_local_copy(remote, evaluates=False) as local:
        assert (Path(local) / "checkpoint").read_text() == "1"
        write(Path(local), checkpoint="2")
    assert files(remote) == {"checkpoint": b"2"}


def test_an_evaluator_pulls_checkpoints_and_pushes_its_evaluations(
    remote: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chief = Mirror(remote, str(tmp_path), mine=lambda name: not name.startswith("eval/"))
    write(tmp_path, checkpoint="1")
    chief.push()
    with open_local_copy(remote, evaluates=True) as local:
        watching = Mirror(remote, local, mine=lambda name: name.startswith("eval/"))
        write(tmp_path, checkpoint="2")
        chief.push()
        watching.pull()
        assert (Path(local) / "checkpoint").read_text() == "2"
        write(Path(local), eval__events="x")
    assert files(remote) == {"checkpoint": b"2", "eval/events": b"x"}


def test_files_are_copied_when_the_run_fails(remote: str) -> None:
    with pytest.raises(ValueError, match="mine"), open_local_copy(remote, evaluates=False) as local:
        write(Path(local), checkpoint="1")
        raise ValueError("mine")
    assert files(remote) == {"checkpoint": b"1"}


def test_the_local_copy_stays_when_the_last_push_fails(
    remote: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(path: str) -> None:
        raise OSError("no space\n\tat java")

    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    with (
        pytest.raises(TrainingError, match=r"not copied to memory://.* \(no space\): it is in"),
        open_local_copy(remote, evaluates=False) as local,
    ):
        write(Path(local), checkpoint="1")
        monkeypatch.setattr(remote_module, "writing", refuse)
    assert (tmp_path / "checkpoint").read_text() == "1"
