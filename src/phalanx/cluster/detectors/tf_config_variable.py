"""TF_CONFIG, which TensorFlow, Kubeflow, Cloud ML and most launchers of Phalanx set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cluster.tf_config import VARIABLE, TFConfig, loads


def detect(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Read TF_CONFIG; an empty variable counts as unset."""
    text = environ.get(VARIABLE, "").strip()
    return loads(text) if text else None
