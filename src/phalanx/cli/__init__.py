"""The `phalanx` command line. Each command is a module, which is imported when it is called."""

import io
import os
import sys
from importlib import import_module
from pathlib import Path

import click

from phalanx.cli.printing import echo
from phalanx.errors import PhalanxError

# Where each command is, and what `phalanx --help` says of it without importing anything.
# `runs:board` is the command `board` in runs.py; a module with a single command calls it `command`.
_GROUPS = {
    "Train": {
        "run": ("run", "Run every task of a job on this machine."),
        "scale": ("scale", "Change the number of workers of a job on this machine."),
        "chaos": ("chaos", "Run a job on this machine under faults, and see how it recovers."),
        "explain": ("explain", "Estimate the memory and messages of a run before it starts."),
        "launch": ("launch", "Start a job on a cluster: Slurm, Kubernetes, ssh, Ray and others."),
        "status": ("jobs:status", "Show the jobs that were launched, and their tasks."),
        "logs": ("jobs:logs", "Print the output of a job."),
        "cancel": ("jobs:cancel", "End a job."),
    },
    "Look at runs": {
        "runs": ("runs:runs", "List runs: step, loss, best metric, state."),
        "compare": ("runs:compare", "Compare the curves of runs."),
        "board": ("runs:board", "Show runs in TensorBoard."),
    },
    "Use models": {
        "evaluate": ("models:evaluate", "Evaluate each checkpoint of a run."),
        "predict": ("models:predict", "Predict the rows of files."),
        "export": ("models:export", "Export a trained model as a SavedModel."),
        "serve": ("serve", "Serve a SavedModel over REST."),
        "manifest": ("manifest", "Print a manifest that serves a model with TensorFlow Serving."),
    },
    "Prepare data": {
        "dataset": ("dataset", "Write well-known datasets as TFRecord files."),
        "records": ("records", "Inspect, verify, repair and convert TFRecord files."),
        "data-service": ("data_service", "Run the input pipeline on other machines."),
    },
    "Set up clusters": {
        "tf-config": ("cluster:tf_config", "Make or check TF_CONFIG."),
        "check": ("cluster:check", "Connect to every peer of this task."),
        "guard": ("guard", "Open the ports of a task to its own job only."),
        "image": ("image", "Write a Dockerfile for a program."),
        "tf1": ("tf1", "Check TensorFlow 1 programs before they run with --tf1."),
    },
}
COMMANDS = {name: module for group in _GROUPS.values() for name, (module, _) in group.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, which keeps `--help` fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(f"phalanx.cli.{module}"), name or "command")
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Values of a job file are in these messages.
            message = io.StringIO()
            error.show(message)
            echo(message.getvalue(), err=True, nl=False)
            return ctx.exit(error.exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in _GROUPS.items():
            with formatter.section(title):
                rows = [(name.ljust(12), text) for name, (_, text) in group.items()]
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="phalanx", prog_name="phalanx")
def cli() -> None:
    """Train a Keras program on a laptop or on a cluster.

    `phalanx COMMAND --help` explains a command, with an example.

    \b
    Example:
      phalanx run --workers 2 --ps 1 train.py --learning-rate 0.1
    """


def _repair_streams() -> None:
    """Replace a closed stdout or stderr, and write "?" for characters that it cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the exit
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run a command; print an error of Phalanx as one message, and exit with its exit code."""
    _repair_streams()
    try:
        cli(prog_name="phalanx")
    except PhalanxError as error:
        echo(f"phalanx: {error}", err=True)
        sys.exit(error.exit_code)
