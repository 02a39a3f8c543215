"""Reads the name in the header Host or Origin of a request."""

import ipaddress


def find_name(authority: str) -> str:
    """Return the name or address in `NAME:PORT`, in lower case, without a dot at its end."""
    name = authority.removesuffix(".").lower()
    if not name.endswith("]"):
        name = name.rpartition(":")[0] if ":" in name else name
    return name.removesuffix(".")


def is_address(name: str) -> bool:
    """Whether a name is an IP address; that of IPv6 may be in brackets."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
