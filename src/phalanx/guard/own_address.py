"""The address that a task listens on: the one of its host in the cluster, on this machine."""

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.guard.library import ANY


@dataclass(frozen=True)
class OwnAddress:
    """An address of this machine, or ANY and why no single one can be used."""

    address: str
    reason: str = ""


def find_own_address(host: str, peers: Iterable[str] = ()) -> OwnAddress:
    """Find the address of this machine that a host name of the cluster means.

    >>> find_own_address("127.0.0.1", ["127.0.0.1"])
    OwnAddress(address='127.0.0.1', reason='')
    """
    found = _resolve(host)
    own = [each for each in found if _is_own(each)]
    if not own and _first_label(host) == _first_label(socket.gethostname()):
        # Name servers may know a new container late, or still have the address of the last one.
        own = [each for each in _resolve(socket.gethostname()) if _is_own(each)]
    if not own:
        where = f"is at {', '.join(found)}" if found else "cannot be resolved"
        return OwnAddress(ANY, f"{host} {where}, which is no address of this machine")
    others = {each for each in peers if each != host}
    if _is_loopback(own[0]) and not all(_is_loopback(at) for each in others for at in _any(each)):
        # As on Debian, where /etc/hosts maps the name of the machine itself to 127.0.1.1.
        return OwnAddress(ANY, f"{host} is {own[0]} on this machine, which other hosts cannot use")
    return OwnAddress(own[0])


def _resolve(host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first: clients of a name with both try each."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    addresses = dict.fromkeys(str(address[0]) for _, _, _, _, address in found)
    return sorted(addresses, key=lambda each: ":" in each)


def _any(host: str) -> list[str]:
    """Return the addresses of a host, or its name if it has none."""
    return _resolve(host) or [host]


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return "%" not in address


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _first_label(host: str) -> str:
    return host.partition(".")[0].lower()
