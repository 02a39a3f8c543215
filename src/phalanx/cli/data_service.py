"""`phalanx data-service`: run the servers of tf.data service."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

import click

from phalanx.cli.command_group import CommandGroup
from phalanx.cli.printing import echo
from phalanx.cluster.lint import find_address_problem
from phalanx.guard.exposure import describe_exposure
from phalanx.launch.processes.runtime_lines import import_tensorflow

_PORT = click.IntRange(1, 65535)


@click.group(cls=CommandGroup)
def command() -> None:
    """Run the input pipeline on other machines than the training, with tf.data service.

    `--data-workers` of `phalanx run` and `phalanx launch` starts these servers for a job. To start
    them yourself, start one dispatcher and any number of workers, and set PHALANX_DATA_SERVICE for
    the training program.

    \b
    Example:
      phalanx data-service dispatcher --port 5050
      phalanx data-service worker dispatcher-host:5050
      PHALANX_DATA_SERVICE=dispatcher-host:5050 python train.py
    """


@command.command()
@click.option("--port", type=_PORT, default=5050, show_default=True, help="Port to listen on.")
@click.option(
    "--work-dir", metavar="DIR", help="Write a journal to DIR, to recover from after a restart."
)
def dispatcher(port: int, work_dir: str | None) -> None:
    """Distribute the data among the workers, until Ctrl-C or SIGTERM.

    \b
    Example:
      phalanx data-service dispatcher --port 5050
    """
    _check_guard()
    import_tensorflow()
    from phalanx.data.tensors import run_dispatcher  # noqa: PLC0415

    serve = partial(run_dispatcher, port, threading.Event(), work_dir=work_dir)
    _run(serve, f"dispatcher on port {port}")


@command.command()
@click.argument("address", metavar="DISPATCHER")
@click.option("--port", type=_PORT, default=5051, show_default=True, help="Port to listen on.")
@click.option("--host", help="The host name that trainers connect to  [default: this machine's]")
def worker(address: str, port: int, host: str | None) -> None:
    """Process data for the dispatcher at DISPATCHER (host:port), until Ctrl-C or SIGTERM.

    The worker reads the data files from the paths that the training program uses.

    \b
    Example:
      phalanx data-service worker dispatcher-host:5050 --port 5051
    """
    if problem := find_address_problem("DISPATCHER", address):
        raise click.UsageError(str(problem))
    name = host or socket.gethostname()
    _check_guard()
    import_tensorflow()
    from phalanx.data.tensors import run_data_worker  # noqa: PLC0415

    serve = partial(run_data_worker, address, port, threading.Event(), host=name)
    _run(serve, f"data worker of {address} at {name}:{port}")


def _check_guard() -> None:
    if warning := describe_exposure(os.environ):
        echo(f"phalanx: warning: {warning}", err=True)


def _run(serve: Callable[[], None], what: str) -> None:
    """Run the server until SIGTERM or SIGINT, and exit with 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    echo(f"phalanx: {what} (stop with Ctrl-C)", err=True)
    serve()
