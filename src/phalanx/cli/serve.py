"""`phalanx serve`: serve a model over the REST API of TensorFlow Serving."""

import signal
from pathlib import Path

import click

from phalanx.cli.models import silence_tensorflow
from phalanx.cli.option_factories import count_option, port_option, time_option


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
    from phalanx.serving.server import BatchingConfig, ModelServer, ServedModel  # noqa: PLC0415
    from phalanx.train.export.saved_model import find_version  # noqa: PLC0415
    from phalanx.train.export.signatures import load_signatures  # noqa: PLC0415

    path, number = find_version(directory.rstrip("/"), version)
    full = Path(directory).resolve()
    # A directory called by a number is a version of the model that its parent is called after.
    name = name or (full.parent.name if full.name.isdecimal() else full.name)
    batching = BatchingConfig(max_batch, batch_wait)
    server = ModelServer(ServedModel(name, number, load_signatures(path), batching), host, port)
    signal.signal(signal.SIGTERM, lambda *_: server.shut_down())
    signal.signal(signal.SIGINT, lambda *_: server.shut_down())
    url = f"http://{host}:{server.port}/v1/models/{name}:predict"
    click.echo(f"{name} version {number} at {url} (stop with Ctrl-C)")
    server.run()
