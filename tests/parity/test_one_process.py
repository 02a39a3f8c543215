"""`phalanx.fit` in one process computes what `model.fit` computes."""

from __future__ import annotations

import pytest
from tests.parity.all_cases import CASES
from tests.parity.random_steps import CUSTOM_STEPS
from tests.parity.table import Case, Mode
from tests.parity.training import compare, train_with_keras, train_with_phalanx

import phalanx
from phalanx.errors import ConfigurationError


# The fast suite trains every fifth case, and `make test-all` all of them.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if number % 5 else [])
        for number, case in enumerate([*CASES, *CUSTOM_STEPS])
    ],
)
def test_results_equal_those_of_keras(case: Case) -> None:
    if message := case.refused.get(Mode.ONE_PROCESS):
        with pytest.raises(ConfigurationError, match=message):
            train_with_phalanx(case, phalanx.RunConfig())
        return
    theirs = train_with_keras(case)
    compare(case, Mode.ONE_PROCESS, train_with_phalanx(case, phalanx.RunConfig()), theirs)


def test_a_metric_of_the_user_can_be_used_again() -> None:
    case = next(case for case in CASES if case.name == "a metric of the user that is a sum")
    model = case.make_model()
    first = [phalanx.fit(model, **case.evaluation_data(), verbose=0) for _ in range(2)][-1]
    assert 0 <= first.history["count_large"][0] <= 64
