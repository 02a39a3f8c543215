"""The docs are complete and correct: their examples run, and they list every command."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import phalanx
from phalanx.cli import COMMANDS, cli

ROOT = Path(__file__).parents[1]
SOURCE = Path(phalanx.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(command: click.Command, path: str) -> dict[str, click.Command]:
    """Return every command and subcommand by its full name."""
    found = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= commands(inner, f"{path} {name}")
    return found


EVERY_COMMAND = commands(cli, "phalanx")


@pytest.mark.parametrize("path", EVERY_COMMAND)
def test_help_of_every_command_has_an_example_of_it(path: str) -> None:
    text = EVERY_COMMAND[path].help or ""
    assert "Example:" in text
    assert path in text.partition("Example:")[2]


def test_command_reference_is_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "docs/generate.py", "--check"], check=True)


def console_sessions() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(ROOT)), block)
        for page in PAGES
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "block"), console_sessions())
def test_console_sessions_print_what_the_page_shows(
    page: str, block: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    """Run the lines after `$ `; the other lines are the output, in which `…` matches anything."""
    typed = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    shown = [line for line in block.splitlines() if not line.startswith("$ ")]
    done = subprocess.run(
        ["bash", "-c", "\n".join(typed)],
        cwd=tmp_path,
        env={**environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    # Tasks run in parallel: the order of their lines varies.
    printed = sorted(done.stdout.splitlines())
    assert len(printed) == len(shown), done.stdout
    for line, expected in zip(printed, sorted(shown), strict=True):
        assert re.fullmatch(re.escape(expected).replace("…", ".*"), line), f"{page}: {line}"


MODULES = sorted(
    ".".join(("phalanx", *path.relative_to(SOURCE).with_suffix("").parts))
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_tree_of_the_architecture_page_is_the_source_tree() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    drawn = re.findall(r"```text\n(src/phalanx/\n.*?)```", text, re.DOTALL)[0]
    parents: list[str] = []
    listed = set()
    for line in drawn.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents = [*parents[:depth], name]
        listed.add("".join(parents))
    for each in listed:
        assert (ROOT / each).exists(), f"{each} is on the page, but does not exist"
    for path in SOURCE.rglob("*"):
        if path.is_dir() and list(path.glob("*.py")):
            drawn_path = f"{path.relative_to(ROOT)}/"
            assert drawn_path in listed, f"{drawn_path} exists, but is not on the page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_example_and_every_command_is_documented() -> None:
    text = "".join(page.read_text() for page in PAGES if page.name != "cli.md")
    for folder in (ROOT / "examples").iterdir():
        assert f"examples/{folder.name}" in text
    for name in COMMANDS:
        assert f"phalanx {name}" in text
