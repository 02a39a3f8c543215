"""The errors of Phalanx."""

from __future__ import annotations

import pickle

import pytest

from phalanx import errors


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.PhalanxError, 1),
        (errors.ConfigurationError, 2),
        (errors.ClusterError, 2),
        (errors.DataError, 2),
        (errors.JobError, 2),
        (errors.RecordError, 1),
        (errors.LaunchError, 1),
        (errors.TrainingError, 1),
        (errors.Interrupted, 75),
    ],
)
def test_errors_have_documented_exit_codes(
    error: type[errors.PhalanxError], exit_code: int
) -> None:
    assert error.exit_code == exit_code


def test_record_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(errors.RecordError("a.tfrecord", 3, 40, "is cut off")))
    assert (error.path, error.index, error.offset, error.reason) == (
        "a.tfrecord", 3, 40, "is cut off",
    )  # fmt: skip
    assert str(error) == "a.tfrecord: record 3 at offset 40: is cut off"
