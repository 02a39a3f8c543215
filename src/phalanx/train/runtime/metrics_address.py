"""Where the chief serves its metrics: as the config says, or the launcher."""

from collections.abc import Mapping

from phalanx.errors import ConfigurationError
from phalanx.metrics_endpoint import HOST_VARIABLE, PORT_VARIABLE
from phalanx.train.config import RunConfig

_LOOPBACK = "127.0.0.1"


def find_metrics_address(config: RunConfig, environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the host and the port; None if nobody asks for metrics.

    >>> find_metrics_address(RunConfig(metrics_port=9400), {})
    ('127.0.0.1', 9400)
    """
    given = environ.get(PORT_VARIABLE)
    port = str(config.metrics_port or given or "")
    if not port:
        if config.metrics_host is not None:
            raise ConfigurationError(
                f"metrics_host is {config.metrics_host}, but there is no port: set metrics_port"
            )
        return None
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        name = "metrics_port" if config.metrics_port else PORT_VARIABLE
        raise ConfigurationError(f"{name} is {port}: set it to a port from 1 to 65535")
    return config.metrics_host or environ.get(HOST_VARIABLE) or _LOOPBACK, int(port)
