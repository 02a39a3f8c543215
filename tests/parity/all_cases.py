"""All cases: importing a module of cases adds them to the table."""

from __future__ import annotations

from tests.parity import (
    edge_cases,
    embedding_cases,
    fit_cases,
    layer_cases,
    model_cases,
    optimizer_cases,
)
from tests.parity.table import CASES

__all__ = [
    "CASES",
    "edge_cases",
    "embedding_cases",
    "fit_cases",
    "layer_cases",
    "model_cases",
    "optimizer_cases",
]
