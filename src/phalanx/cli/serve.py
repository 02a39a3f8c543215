"""`phalanx serve`: serve a model over the REST API of TensorFlow Serving."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from phalanx.cli.option_factories import count_option, port_option, time_option
from phalanx.cli.trained_model import silence_tensorflow


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--name", metavar="NAME", help="The name of the model.  [default: that of its directory]"
)
@click.option(
    "--version", type=int, metavar="N", help="The version to serve.  [default: the highest]"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@port_option(8501)
@count_option("--max-batch", text="The maximum rows of one call; 1 disables batching.", default=64)
@time_option("--batch-wait", "How long a single request waits for others to form a batch.", "0ms")
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

    The server answers POST /v1/models/NAME:predict, GET /v1/models/NAME and GET
    /v1/models/NAME/metadata, also with /versions/N, until Ctrl-C or SIGTERM. Simultaneous requests
    are batched into one call of the model. The server is for development: it has neither TLS nor
    authentication.

    \b
    Example:
      phalanx serve models/digits --port 8501
      curl -d '{"instances": [[1, 2, 3]]}' localhost:8501/v1/models/digits:predict
    """
    silence_tensorflow()
    from phalanx.serving.server import (  # noqa: PLC0415
        BatchingConfig,
        ModelServer,
        ServedModel,
        shut_down,
    )
    from phalanx.train.export.saved_model import find_version  # noqa: PLC0415
    from phalanx.train.export.signatures import load_signatures  # noqa: PLC0415

    path, number = find_version(directory.rstrip("/"), version)
    name = name or _guess_name(Path(directory).resolve())
    batching = BatchingConfig(max_batch, batch_wait)
    model = ServedModel(name, number, load_signatures(path), batching)
    server = ModelServer(model, host, port)
    signal.signal(signal.SIGTERM, lambda *_: shut_down(server))
    signal.signal(signal.SIGINT, lambda *_: shut_down(server))
    click.echo(
        f"{name} version {number} at http://{host}:{server.port}/v1/models/{name}:predict "
        "(stop with Ctrl-C)"
    )
    server.run()


def _guess_name(directory: Path) -> str:
    """Return the name of the directory, or of its parent if the directory is a version."""
    return directory.parent.name if directory.name.isdecimal() else directory.name
