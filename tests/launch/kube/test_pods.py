"""Parsing of pod options, and escapes in manifests."""

from __future__ import annotations

import pytest
from tests.servers.kubernetes.pods import expand

from phalanx.errors import JobError
from phalanx.launch.kube.manifest import dump
from phalanx.launch.kube.options import Toleration
from phalanx.launch.kube.patch import merge
from phalanx.launch.kube.pods import escape_variables, quote


def test_parse_toleration() -> None:
    assert Toleration.parse("gpu=yes:NoSchedule") == Toleration("gpu", "yes", "NoSchedule")
    assert Toleration.parse("gpu:NoExecute").value is None
    with pytest.raises(JobError, match="is not a toleration"):
        Toleration.parse("gpu=yes")


def test_variables_are_escaped_in_quoted_words() -> None:
    assert quote("$(HOME)") == "'$$(HOME)'"


@pytest.mark.parametrize("text", ["$(A)", "$$(A)", "$$$(A)", "a$$b", "$$$", "$", "$A", "$(A)$(A)"])
def test_pods_get_variables_unchanged(text: str) -> None:
    assert expand(escape_variables(text), {"A": "another value"}) == text


def test_words_that_could_be_booleans_are_quoted() -> None:
    assert dump([{"env": "on"}]) == 'env: "on"'


def test_merge_of_objects_and_lists() -> None:
    assert merge({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}}) == {"b": {"c": 2, "d": 3}}
    merged = merge([{"name": "x", "value": "1"}], [{"name": "x", "value": "2"}], "env")
    assert merged == [{"name": "x", "value": "2"}]
