from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers import namespaces


@pytest.fixture
def stranger() -> Iterator[namespaces.Namespace]:
    """Another host on the network, which is not in any job."""
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with namespaces.namespace() as made:
        yield made
