"""The metrics of a served model, for Prometheus."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)

from phalanx import __version__
from phalanx.metrics_endpoint import MetricsEndpoint
from phalanx.serving.application import OnAnswer
from phalanx.serving.batcher import ServedModel

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@contextmanager
def open_metrics(model: ServedModel, host: str, port: int) -> Iterator[tuple[OnAnswer, int]]:
    """Serve the metrics of a model.

    Yields:
        A function to call after each request, and the port that is listened on.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    count = make_metrics(model, registry)
    endpoint = MetricsEndpoint(registry, host, port)
    try:
        yield count, endpoint.port
    finally:
        endpoint.close()


def make_metrics(model: ServedModel, registry: CollectorRegistry) -> OnAnswer:
    """Observe a model; return a function to call after each request."""
    about = {"version": __version__, "model": model.name, "model_version": str(model.version)}
    Info("phalanx_serve", "The served model.", registry=registry).info(about)
    requests = Counter(
        "phalanx_serve_requests",
        "Requests by the status of their answer.",
        ["status"],
        registry=registry,
    )
    seconds = Histogram(
        "phalanx_serve_request_seconds",
        "From the first byte of a request to its answer.",
        buckets=_SECONDS,
        registry=registry,
    )
    rows = Histogram(
        "phalanx_serve_batch_rows",
        "The rows of each call of the model.",
        buckets=_ROWS,
        registry=registry,
    )
    waiting = Gauge(
        "phalanx_serve_queue_length", "Requests that wait for the model.", registry=registry
    )
    waiting.set_function(lambda: model.waiting)
    model.on_call = rows.observe

    def count(status: int, spent: float) -> None:
        requests.labels(str(status)).inc()
        seconds.observe(spent)

    return count
