"""`phalanx serve`: a model behind TensorFlow Serving's REST API."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from phalanx.cli.options import DURATION
from phalanx.cli.trained_program import silence_tensorflow


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--name", metavar="NAME", help="The model's name.  [default: the directory's]")
@click.option("--version", type=int, metavar="N", help="Which version.  [default: the highest]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8501,
    show_default=True,
    help="0 takes any free port.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="How many rows one call of the model takes at most; 1 turns batching off.",
)
@click.option(
    "--batch-wait",
    type=DURATION,
    default="0ms",
    show_default=True,
    metavar="TIME",
    help="How long a lone request waits for others. Under load none needs to.",
)
def command(
    directory: str,
    name: str | None,
    version: int | None,
    host: str,
    port: int,
    max_batch: int,
    batch_wait: float,
) -> None:
    """Serve the SavedModel in DIRECTORY to clients written for TensorFlow Serving.

    It answers POST /v1/models/NAME:predict, GET /v1/models/NAME and GET /v1/models/NAME/metadata,
    also with /versions/N, until Ctrl-C or SIGTERM. Requests that come at the same time are answered
    by one call of the model. It is for trying things out: it has no TLS and no passwords.

    \b
    Example:
      phalanx serve models/digits --port 8501
      curl -d '{"instances": [[1, 2, 3]]}' localhost:8501/v1/models/digits:predict
    """
    silence_tensorflow()
    from phalanx.serving.server import (  # noqa: PLC0415
        Batching,
        ModelServer,
        ServedModel,
        shut_down,
    )
    from phalanx.train.export.saved_model import find_version  # noqa: PLC0415
    from phalanx.train.export.signatures import load_signatures  # noqa: PLC0415

    path, number = find_version(directory.rstrip("/"), version)
    name = name or _guess_name(Path(directory).resolve())
    batching = Batching(max_batch, batch_wait)
    model = ServedModel(name, number, load_signatures(path), batching)
    server = ModelServer(model, host, port)
    signal.signal(signal.SIGTERM, lambda *_: shut_down(server))
    signal.signal(signal.SIGINT, lambda *_: shut_down(server))
    click.echo(
        f"{name} version {number} at http://{host}:{server.port}/v1/models/{name}:predict "
        "(Ctrl-C ends it)"
    )
    server.run()


def _guess_name(directory: Path) -> str:
    """A SavedModel's own directory is a version: its parent has the name."""
    return directory.parent.name if directory.name.isdecimal() else directory.name
