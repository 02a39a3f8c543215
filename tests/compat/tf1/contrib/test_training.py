"""tf.contrib.training.HParams."""

import copy
import pickle

import pytest

from phalanx.compat.tf1.contrib.training import HParams


def test_values_are_attributes_with_types() -> None:
    params = HParams(rate=0.1, layers=[1, 2], name="net", deep=True, steps=3)
    params.rate = 1
    params.set_hparam("layers", [4])
    assert params.values() == {
        "rate": 1.0,
        "layers": [4],
        "name": "net",
        "deep": True,
        "steps": 3,
    }
    assert isinstance(params.rate, float)
    assert "rate" in params
    assert params.get("gone", 5) == 5


def test_text_sets_values() -> None:
    params = HParams(rate=0.1, layers=[1, 2], name="net", deep=True, steps=3)
    params.parse("rate=1e-3,layers=[5,6,7],name=other,deep=false,layers[1]=9")
    assert (params.rate, params.layers, params.name, params.deep) == (
        1e-3,
        [5, 9, 7],
        "other",
        False,
    )
    assert HParams(a=1).parse_json('{"a": 4}').a == 4
    assert HParams(a=1, b="x").to_json() == '{"a": 1, "b": "x"}'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("speed=1", "there is no hyperparameter 'speed': there are layers, rate"),
        ("rate=fast", "rate is 'fast': it must be of type float"),
        ("rate", "'rate' cannot be read"),
        ("rate=[1,2]", "rate is a single value"),
        ("layers[9]=1", "layers has no element 9"),
    ],
)
def test_wrong_text_is_described(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        HParams(rate=0.1, layers=[1, 2]).parse(text)


def test_wrong_types_and_names_are_rejected() -> None:
    params = HParams(steps=1)
    with pytest.raises(ValueError, match="steps is of type int"):
        params.steps = 1.5
    with pytest.raises(ValueError, match="'values' exists, or is a method"):
        params.add_hparam("values", 1)


def test_copies_are_equal() -> None:
    params = HParams(steps=1, layers=[1])
    assert copy.deepcopy(params).values() == params.values()
    assert pickle.loads(pickle.dumps(params)).values() == params.values()
