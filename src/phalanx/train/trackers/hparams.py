"""The HParams page of TensorBoard: the parameters of each run, beside its summaries."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from phalanx.train.trackers.base import Parameters


class HParams:
    """The parameters of a run, in files in its model_dir, where its summaries already are."""

    name = "hparams"

    def __init__(self) -> None:
        self._directory = ""

    def open(self, run_id: str | None, run_name: str, parameters: Parameters) -> str:
        from tensorboard.plugins.hparams import api  # noqa: PLC0415

        self._directory = str(parameters.get("model_dir", ""))
        if run_id is None and self._directory:
            with tf.summary.create_file_writer(self._directory).as_default():
                api.hparams(dict(parameters), trial_id=run_name)
        return run_name

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The summaries of the run have them."""

    def add_artifact(self, path: Path) -> None:
        """They are beside the summaries."""

    def close(self, succeeded: bool) -> None:
        from tensorboard.plugins.hparams import api_pb2, summary  # noqa: PLC0415

        if self._directory:
            status = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
            data = summary.session_end_pb(status).SerializeToString()
            with tf.summary.create_file_writer(self._directory).as_default():
                tf.summary.experimental.write_raw_pb(data, step=0)
