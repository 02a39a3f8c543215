"""Any TF_CONFIG is either a valid configuration or an error that lists problems."""

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.security.fuzzing import fuzz, vary

from phalanx.cluster.lint import Problem, lint
from phalanx.cluster.tf_config import loads, names_master
from phalanx.errors import ClusterError

words = st.sampled_from(
    ["cluster", "task", "type", "index", "trial", "model_dir", "environment", "local", "cloud",
     "chief", "master", "worker", "ps", "evaluator", "dispatcher", "0", "1", "00", "-1", "1e5",
     "a:1", "b:2222", "[::1]:22", "a", ":", "a:b:c", "http://a:1", "ä:1", "a:1\n", "\ud800"]
)  # fmt: skip
scalars = st.one_of(
    words, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(words | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
addresses = st.lists(words, max_size=4) | st.dictionaries(words, words, max_size=3) | values
roles = st.sampled_from(["chief", "master", "worker", "ps", "evaluator"])
configs = st.fixed_dictionaries(
    {},
    optional={
        "cluster": st.dictionaries(roles | words, addresses, max_size=4) | values,
        "task": st.fixed_dictionaries(
            {}, optional={"type": roles | values, "index": st.integers(-1, 3) | values}
        )
        | values,
        "model_dir": values,
        "environment": values,
        "rpc_layer": values,
    },
)


def check(text: str) -> None:
    problems = lint(text)
    assert all(isinstance(problem, Problem) and str(problem) for problem in problems)
    try:
        config = loads(text)
    except ClusterError:
        assert any(not problem.tolerated for problem in problems)
        return
    assert loads(config.dumps()) == config
    config.is_chief()
    names_master({"TF_CONFIG": text})


PIECES = ["{", "}", "[", "]", '"', ":", ",", "null", "1e999", "-1", "master", "\\ud800", "\x00"]


@fuzz
@given(configs.map(json.dumps) | st.text())
def test_any_text_is_valid_or_explained(text: str) -> None:
    for each in vary(text, PIECES):
        check(each)
