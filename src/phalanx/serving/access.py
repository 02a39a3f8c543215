"""Who may call a served model."""

import hmac
import logging
import os
import re
import socket
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ConfigurationError
from phalanx.host_header import find_name, is_address

LOG = logging.getLogger("phalanx")

_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Access:
    """The names that clients may call the server by, and the token that they must send.

    A page of a hostile site can make a browser call any address under a name of that site (DNS
    rebinding). The header Host then has that name, which no honest client uses. It can also make a
    browser send requests under the right name, whose answers it cannot read, but which the model
    would compute. The header Origin then has the name of the site; other clients send none.
    """

    host: str
    names: Collection[str] = ()
    token: str | None = None

    def allows_name(self, header: str) -> bool:
        """Whether the value of a header Host names this server."""
        name = find_name(header)
        if is_address(name) or name == "localhost" or name.endswith(".localhost"):
            return True
        known = {self.host.lower(), socket.gethostname().lower(), *map(str.lower, self.names)}
        return "*" in known or name in known

    def allows_origin(self, header: str, host: str) -> bool:
        """Whether the value of a header Origin is the server itself, or has an allowed name."""
        site = header.partition("://")[2].lower()
        known = set(map(str.lower, self.names))
        return bool(site) and (site == host.lower() or "*" in known or find_name(site) in known)

    def allows_token(self, header: str) -> bool:
        """Whether the value of a header Authorization has the token, if one is needed."""
        if self.token is None:
            return True
        scheme, _, given = header.partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self.token.encode())
        return is_right and scheme.lower() == "bearer"


def read_token(path: str) -> str:
    """Read a token from a file, without the white space around it; warn if others can read it."""
    try:
        with Path(path).open() as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token in {path} cannot be read: {error}") from None
    if not re.fullmatch(rf"[!-~]{{{_SHORTEST_TOKEN},}}", token):
        raise ConfigurationError(
            f"{path} holds no token: write one line of at least {_SHORTEST_TOKEN} characters into "
            "it, for example with: openssl rand -hex 32"
        )
    # A warning only: the files of a Kubernetes Secret have mode 0644 by default.
    if stat.S_ISREG(mode) and mode & 0o077:
        LOG.warning("other users of this host can read the token in %s: chmod 600 %s", path, path)
    return token
