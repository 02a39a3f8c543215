"""`phalanx serve`: answer the requests of clients with a SavedModel."""

import contextlib
import signal
from pathlib import Path

import click

from phalanx.cli.option_factories import count_option, port_option, time_option
from phalanx.cli.options import ParsedType
from phalanx.cli.printing import echo
from phalanx.errors import ConfigurationError
from phalanx.launch.processes.runtime_lines import import_tensorflow
from phalanx.launch.values import parse_size
from phalanx.metrics_endpoint import check_metrics_library


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
@click.option(
    "--max-body",
    type=ParsedType(parse_size),
    default="16M",
    show_default=True,
    metavar="SIZE",
    help="The longest request; all requests at a time may have eight times as much.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus at this port, under /metrics.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address that the metrics are served at, without a token.",
)
@time_option("--timeout", "The time for a whole request and its answer.", "60s")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name by which clients call the server, and whose web pages may, * for any. Can be "
    "repeated.  [default: addresses, localhost and this host, and no other pages]",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Answer only requests with the header Authorization: Bearer and the token in FILE.",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Serve HTTPS with the certificate in this PEM file.",
)
@click.option(
    "--tls-key",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The key of the certificate, a PEM file without a password.",
)
def command(
    directory: str,
    name: str | None,
    version: int | None,
    host: str,
    port: int,
    max_batch: int,
    batch_wait: float,
    max_body: int,
    metrics_port: int | None,
    metrics_host: str,
    timeout: float,
    names: tuple[str, ...],
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Serve the SavedModel in DIRECTORY to clients written for TensorFlow Serving.

    The server answers POST /v1/models/NAME:predict, GET /v1/models/NAME and GET
    /v1/models/NAME/metadata, also with /versions/N, until Ctrl-C or SIGTERM, and then finishes the
    requests in flight. Simultaneous requests are batched into one call of the model.

    Everyone who can reach the address can call the model, and read what is sent: before you listen
    on another address than this machine's own, set --token-file, --tls-cert and --tls-key.

    \b
    Example:
      phalanx serve models/digits --port 8501
      curl -d '{"instances": [[1, 2, 3]]}' localhost:8501/v1/models/digits:predict
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together: set both, or neither")
    import_tensorflow()
    try:
        from phalanx.serving.server import Certificate, ModelServer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "httptools"):
            raise
        raise ConfigurationError("serving needs uvicorn: pip install 'phalanx[serve]'") from None
    if metrics_port is not None:
        check_metrics_library()
    from phalanx.serving.access import Access, read_token  # noqa: PLC0415
    from phalanx.serving.application import Limits  # noqa: PLC0415
    from phalanx.serving.batcher import ServedModel  # noqa: PLC0415
    from phalanx.train.export import saved_model, signatures  # noqa: PLC0415

    access = Access(host, names, read_token(token_file) if token_file else None)
    limits = Limits(body_bytes=max_body, all_bytes=8 * max_body, seconds=timeout)
    certificate = Certificate(tls_cert, tls_key) if tls_cert and tls_key else None

    path, number = saved_model.find_version(directory.rstrip("/"), version)
    full = Path(directory).resolve()
    # A directory called by a number is a version of the model that its parent is called after.
    name = name or (full.parent.name if full.name.isdecimal() else full.name)
    loaded = signatures.load_signatures(path)
    model = ServedModel(name, number, loaded, max_batch, batch_wait)
    with contextlib.ExitStack() as stack:
        on_answer, metrics_url = None, ""
        if metrics_port is not None:
            from phalanx.serving.metrics import open_metrics  # noqa: PLC0415

            on_answer, opened = stack.enter_context(open_metrics(model, metrics_host, metrics_port))
            metrics_url = f"; metrics at http://{_show_host(metrics_host)}:{opened}/metrics"
        server = ModelServer(
            model,
            host,
            port,
            access=access,
            limits=limits,
            certificate=certificate,
            on_answer=on_answer,
        )
        signal.signal(signal.SIGTERM, lambda *_: server.shut_down())
        signal.signal(signal.SIGINT, lambda *_: server.shut_down())
        scheme = "https" if certificate else "http"
        url = f"{scheme}://{_show_host(host)}:{server.port}/v1/models/{name}:predict"
        echo(f"{name} version {number} at {url}{metrics_url} (stop with Ctrl-C)")
        server.run()


def _show_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
