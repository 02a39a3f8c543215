from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.spark import start_spark, stop_spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Two tasks at a time, in one process."""
    session = start_spark("local[2]")
    yield session
    stop_spark(session)
