"""Names in files and messages of others do not control the terminal that shows them."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phalanx.records import write_examples

# Clears the screen, sets the title, answers as if typed, reverses the text.
EVIL = "a\x1b[2J\x1b]0;title\x07\x1b[6n\x9b31m\u202eb"


class EvilCall:
    def __reduce__(self) -> tuple[object, ...]:
        return EvilCall, ()


def run(directory: Path, *arguments: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
        timeout=120,
    )
    return (done.stdout + done.stderr).decode()


def phalanx(directory: Path, *arguments: str, **environ: str) -> str:
    return run(directory, "-m", "phalanx", *arguments, **environ)


def show_batch(directory: Path) -> str:
    data = pickle.dumps({b"data": EvilCall(), b"labels": []}, 4)
    name = EVIL.encode()
    # The module's name, as a short text of the pickle.
    module = EvilCall.__module__.encode()
    for part in ("data_batch_1", "test_batch"):
        found = data.replace(bytes([len(module)]) + module, bytes([len(name)]) + name)
        (directory / part).write_bytes(found)
    return phalanx(directory, "dataset", "cifar10", "--source", ".", "--out", "out")


def write_records(directory: Path) -> str:
    path = directory / "data.tfrecord"
    write_examples(path, [pa.RecordBatch.from_pydict({EVIL: [1], "text": [EVIL.encode()]})])
    return path.name


def show_table_of_features(directory: Path) -> str:
    return phalanx(directory, "records", "schema", write_records(directory))


def show_features(directory: Path) -> str:
    return phalanx(directory, "records", "head", write_records(directory))


def show_file_name(directory: Path) -> str:
    (directory / EVIL).write_bytes(b"damage")
    return phalanx(directory, "records", "verify", EVIL)


def show_run_name(directory: Path) -> str:
    (directory / EVIL).mkdir()
    status = {"state": "failed", "step": 1, "time": 1.0, "reason": EVIL}
    (directory / EVIL / "status.json").write_text(json.dumps(status))
    return phalanx(directory, "runs", ".")


def show_cluster(directory: Path) -> str:
    config = {"cluster": {EVIL: ["a:1"]}, "task": {"type": EVIL, "index": 0}}
    return phalanx(directory, "tf-config", "lint", TF_CONFIG=json.dumps(config))


def show_job_file(directory: Path) -> str:
    (directory / "phalanx.toml").write_text('workers = "a\\u001b[2J"\n')
    return phalanx(directory, "launch", "ssh", "--dry-run")


def show_error_of_a_program(directory: Path) -> str:
    (directory / "train.py").write_text(
        "import logging\n"
        "from phalanx.errors import DataError\n"
        "from phalanx.train.console import explain_errors, show_log\n"
        "show_log()\n"
        "explain_errors()\n"
        f"logging.getLogger('phalanx').warning('a peer says %s', {EVIL!r})\n"
        f"raise DataError('there is no ' + {EVIL!r})\n"
    )
    return run(directory, "train.py")


@pytest.mark.parametrize(
    "show",
    [
        show_batch,
        show_table_of_features,
        show_features,
        show_file_name,
        show_run_name,
        show_cluster,
        show_job_file,
        show_error_of_a_program,
    ],
)
def test_names_of_others_are_printed_with_escapes(
    show: Callable[[Path], str], tmp_path: Path
) -> None:
    output = show(tmp_path)
    assert "1b[2J" in output
    assert not set(output) & set("\x1b\x07\x9b\u202e"), output
