"""`phalanx data-service`: the servers of tf.data service, started by hand or by a launcher."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

import click

from phalanx.cli.trained_program import silence_tensorflow
from phalanx.cluster.lint import find_address_problem

_PORT = click.IntRange(1, 65535)


@click.group()
def command() -> None:
    """Prepare data on other machines than those that train.

    `--data-workers` of `phalanx run` and `phalanx launch` starts all of this by itself. By hand:
    one dispatcher, any number of workers, and PHALANX_DATA_SERVICE set for the training program.

    \b
    Example:
      phalanx data-service dispatcher --port 5050
      phalanx data-service worker dispatcher-host:5050
      PHALANX_DATA_SERVICE=dispatcher-host:5050 python train.py
    """


@command.command()
@click.option("--port", type=_PORT, default=5050, show_default=True, help="Where to listen.")
@click.option(
    "--work-dir", metavar="DIR", help="Keep a journal there, to go on after a restart with it."
)
def dispatcher(port: int, work_dir: str | None) -> None:
    """Hand out the parts of the data to the workers, until Ctrl-C or SIGTERM.

    \b
    Example:
      phalanx data-service dispatcher --port 5050
    """
    silence_tensorflow()
    from phalanx.data.service import run_dispatcher  # noqa: PLC0415

    serve = partial(run_dispatcher, port, threading.Event(), work_dir=work_dir)
    _run(serve, f"dispatcher on port {port}")


@command.command()
@click.argument("address", metavar="DISPATCHER")
@click.option("--port", type=_PORT, default=5051, show_default=True, help="Where to listen.")
@click.option("--host", help="Its name for those that train  [default: this machine's]")
def worker(address: str, port: int, host: str | None) -> None:
    """Prepare data for the dispatcher at DISPATCHER (host:port), until Ctrl-C or SIGTERM.

    The files to read must be there under the paths that the training program names.

    \b
    Example:
      phalanx data-service worker dispatcher-host:5050 --port 5051
    """
    problem = find_address_problem("DISPATCHER", address)
    if problem:
        raise click.UsageError(str(problem))
    name = host or socket.gethostname()
    silence_tensorflow()
    from phalanx.data.service import run_data_worker  # noqa: PLC0415

    serve = partial(run_data_worker, address, port, threading.Event(), host=name)
    _run(serve, f"data worker of {address} at {name}:{port}")


def _run(serve: Callable[[], None], what: str) -> None:
    """Be the server until a signal asks for the end, which is then no failure."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    click.echo(f"phalanx: {what} (Ctrl-C ends it)", err=True)
    serve()
