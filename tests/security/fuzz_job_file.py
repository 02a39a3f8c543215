"""Any phalanx.toml either describes a job that can be planned, or is wrong usage."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.fuzzing import fuzz, replace_file, vary

from phalanx.cli import cli
from phalanx.cli.options import make_job
from phalanx.errors import ConfigurationError
from phalanx.launch.registry import find

BACKENDS = ("slurm", "ssh", "docker", "compose", "swarm", "kubernetes", "marathon")
names = st.sampled_from(
    ["name", "program", "arguments", "workers", "ps", "no-chief", "evaluator", "model-dir", "env",
     "restarts", "time-limit", "cpus", "memory", "gpus", "image", "mount", "label", "python",
     "tensorboard", "log-dir", "host", "partition", "sbatch-option", "namespace", "toleration",
     "node-selector", "data-workers", "module", "command", "tf1", "master", "credentials", "port",
     "directory", "copy", "grace", "url", "constraint", "slurm", "kubernetes", "docker", "x"]
)  # fmt: skip
texts = st.sampled_from(
    ["train.py", "digits", "a/b:1", "-x", "--", "", "\n", "a\nb", "\0", "\x1b[1m", "{role}", "{x}",
     "2", "-1", "1e9", "16G", "12h", "worker=2", "ps=4G", "=", "a=b", "A=b", "/a:/b", "nfs://a/b:/c",
     "key=value:NoSchedule", "$(id)", "`id`", "'", '"', "../..", "x" * 300, "ä", "gs://a/b"]
) | st.text(max_size=12)  # fmt: skip
scalars = texts | st.booleans() | st.integers(-5, 1 << 70) | st.floats()
values = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(names | texts, scalars | st.lists(scalars, max_size=2), max_size=3)
)
tables = st.dictionaries(names, values, max_size=6)


def to_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {to_toml(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    return repr(value) if isinstance(value, int | float) else json.dumps(value)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("job")
    (path / "train.py").write_text("")
    with contextlib.chdir(path):
        yield path


def plan(backend: str, content: str) -> str | None:
    """The plan of the job in phalanx.toml, or None if that is wrong usage."""
    replace_file(Path("phalanx.toml"), content.encode(errors="surrogatepass"))
    group = cli.get_command(click.Context(cli), "launch")
    assert isinstance(group, click.Group)
    command = group.get_command(click.Context(group), backend)
    assert command is not None
    try:
        context = command.make_context(backend, ["--dry-run"])
        job = make_job(context.params)
        return str(find(backend).from_options(job, context.params).plan(job).render())  # type: ignore[attr-defined]
    except (click.ClickException, ConfigurationError):
        return None


def write_file(table: dict[str, Any]) -> str:
    settings = {"program": "train.py", "image": "i", "host": ["a"], "url": "http://m", **table}
    return "".join(f"{json.dumps(key)} = {to_toml(value)}\n" for key, value in settings.items())


PIECES = [
    "\n",
    "=",
    '"',
    "[",
    "]",
    "{",
    "}",
    "'",
    "#",
    "\\",
    "\x00",
    "nan",
    "1979-05-27",
    "[slurm]",
]


@fuzz
@given(st.sampled_from(BACKENDS), tables.map(write_file) | st.text())
def test_any_file_makes_a_plan_or_is_wrong_usage(backend: str, content: str) -> None:
    for each in vary(content, PIECES):
        found = plan(backend, each)
        if found is not None and backend == "slurm":
            directives = [line for line in found.splitlines() if line.startswith("#SBATCH")]
            assert directives
            assert os.linesep not in "".join(directives)
