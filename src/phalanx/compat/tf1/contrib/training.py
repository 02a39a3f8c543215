"""tf.contrib.training: hyperparameters, and variables placed by load."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class HParams:
    """Hyperparameters with types: attributes that can be set from a text.

    >>> params = HParams(rate=0.1, layers=[3, 4], name="net")
    >>> params.parse("rate=0.5,layers=[5,6]").values()
    {'rate': 0.5, 'layers': [5, 6], 'name': 'net'}

    Args:
        hparam_def: Not supported.
        model_structure: Any object, which is kept.
        **kwargs: The names and initial values; their types are checked from then on.
    """

    _kinds: dict[str, tuple[type, bool]]
    _model_structure: Any

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        if hparam_def is not None:
            raise ValueError("HParams: hparam_def is not supported: pass the values by name")
        self.__dict__["_kinds"] = {}
        self.__dict__["_model_structure"] = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add a hyperparameter; its type is that of the value, and a list keeps its elements' type.

        Args:
            name: The name of the new attribute.
            value: Its value. An empty list is an error, as it has no type.
        """
        if getattr(self, name, None) is not None or name in self._kinds:
            raise ValueError(f"HParams: {name!r} exists, or is a method of HParams: rename it")
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(
                    f"HParams: {name} is empty: a list must show the type of its values"
                )
            self._kinds[name] = (type(value[0]), True)
        else:
            self._kinds[name] = (type(value), False)
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(sorted(self.__dict__.get("_kinds", ())))
        raise AttributeError(f"HParams has no hyperparameter {name!r}: there are {known}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._kinds:
            self.set_hparam(name, value)
        else:
            self.__dict__[name] = value

    def set_hparam(self, name: str, value: Any) -> None:
        """Set a hyperparameter that exists; the value is converted to its type.

        Args:
            name: The name.
            value: The new value.
        """
        kind, is_list = self._find(name)
        if isinstance(value, (list, tuple)) != is_list:
            expected = "a list" if is_list else "a single value"
            raise ValueError(f"HParams: {name} is {expected}, not {value!r}")
        converted = (
            [_convert(name, kind, each) for each in value]
            if is_list
            else _convert(name, kind, value)
        )
        self.__dict__[name] = converted

    def del_hparam(self, name: str) -> None:
        """Remove a hyperparameter, if it exists."""
        if name in self._kinds:
            del self._kinds[name]
            del self.__dict__[name]

    def parse(self, values: str) -> "HParams":
        """Set hyperparameters from a text: `name=value,list=[1,2],list[0]=3`.

        Args:
            values: The text.

        Returns:
            This object.
        """
        for name, index, value in _parse_text(values):
            kind, is_list = self._find(name)
            if index is not None:
                if not is_list:
                    raise ValueError(f"HParams: {name} is not a list, but {name}[{index}] is set")
                if not 0 <= index < len(getattr(self, name)):
                    raise ValueError(f"HParams: {name} has no element {index}")
                changed = list(getattr(self, name))
                changed[index] = _parse_value(name, kind, value)
                self.__dict__[name] = changed
            elif isinstance(value, list):
                self.set_hparam(name, [_parse_value(name, kind, each) for each in value])
            elif is_list:
                self.set_hparam(name, [_parse_value(name, kind, value)])
            else:
                self.set_hparam(name, _parse_value(name, kind, value))
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> "HParams":
        """Set hyperparameters from a dict.

        Args:
            values_dict: The values by name.

        Returns:
            This object.
        """
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    set_from_map = override_from_dict

    def parse_json(self, values_json: str) -> "HParams":
        """Set hyperparameters from a JSON object.

        Args:
            values_json: The text.

        Returns:
            This object.
        """
        return self.override_from_dict(json.loads(values_json))

    def values(self) -> dict[str, Any]:
        """Return the values by name."""
        return {name: getattr(self, name) for name in self._kinds}

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """Return the values as a JSON object.

        Args:
            indent: As in `json.dumps`.
            separators: As in `json.dumps`.
            sort_keys: As in `json.dumps`.

        Returns:
            The text.
        """
        return json.dumps(
            self.values(), indent=indent, separators=separators, sort_keys=sort_keys, default=str
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default if there is none.

        Args:
            key: The name.
            default: The value if there is no such hyperparameter.

        Returns:
            The value.
        """
        return getattr(self, key) if key in self._kinds else default

    def get_model_structure(self) -> Any:
        """Return the object that was given as model_structure."""
        return self._model_structure

    def set_model_structure(self, model_structure: Any) -> None:
        """Keep another object as model_structure."""
        self.__dict__["_model_structure"] = model_structure

    def _find(self, name: str) -> tuple[type, bool]:
        if name not in self._kinds:
            known = ", ".join(sorted(self._kinds))
            raise ValueError(f"HParams: there is no hyperparameter {name!r}: there are {known}")
        return self._kinds[name]

    def __contains__(self, key: str) -> bool:
        return key in self._kinds

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


def _convert(name: str, kind: type, value: Any) -> Any:
    """Convert a value without loss: an integer to a float, but not a float to an integer."""
    if value is None or kind is type(None) or (isinstance(value, kind) and kind is not int):
        return value
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    fits = {
        bool: isinstance(value, (bool, np.bool_)),
        int: is_number and float(value).is_integer() and not isinstance(value, float),
        float: is_number,
        str: isinstance(value, (str, bytes)),
    }
    if not fits.get(kind, False):
        raise ValueError(f"HParams: {name} is of type {kind.__name__}, and {value!r} is not")
    return value.decode() if isinstance(value, bytes) else kind(value)


def _parse_value(name: str, kind: type, text: str) -> Any:
    if kind is bool:
        known = {"true": True, "false": False, "1": True, "0": False}
        if text.lower() not in known:
            raise ValueError(f"HParams: {name} is {text!r}: it must be true or false")
        return known[text.lower()]
    if kind is type(None):
        return text
    try:
        return kind(text)
    except ValueError:
        raise ValueError(
            f"HParams: {name} is {text!r}: it must be of type {kind.__name__}"
        ) from None


_ASSIGNMENT = re.compile(
    r"\s*([A-Za-z_][\w.]*)\s*(?:\[(\d+)\])?\s*=\s*(\[[^\]]*\]|[^,\[]*)\s*(,|$)"
)


def _parse_text(text: str) -> list[tuple[str, int | None, Any]]:
    found = []
    position = 0
    while position < len(text):
        match = _ASSIGNMENT.match(text, position)
        if match is None:
            raise ValueError(
                f"HParams: {text[position:]!r} cannot be read: write name=value, or list=[1,2]"
            )
        name, index, value, _ = match.groups()
        parsed: Any = value.strip()
        if parsed.startswith("["):
            parsed = [each.strip() for each in parsed[1:-1].split(",") if each.strip()]
        found.append((name, None if index is None else int(index), parsed))
        position = match.end()
    return found


class GreedyLoadBalancingStrategy:
    """Places each variable on the parameter server with the least load, for replica_device_setter.

    Args:
        num_tasks: The number of parameter servers.
        load_fn: Returns the load of an operation, as `byte_size_load_fn` does.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Any], float]) -> None:
        self._loads = np.zeros(num_tasks)
        self._load_fn = load_fn

    def __call__(self, op: Any) -> int:
        task = int(np.argmin(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


def byte_size_load_fn(op: Any) -> float:
    """Return the size in bytes of the variable that an operation creates.

    Args:
        op: The operation of a variable.

    Returns:
        The size of its only output.
    """
    is_handle = op.type == "VarHandleOp"
    if not is_handle and len(op.outputs) != 1:
        raise ValueError(f"{op.name} has {len(op.outputs)} outputs: only variables have a size")
    output = op.outputs[0]
    shape = [dim.size for dim in op.get_attr("shape").dim] if is_handle else output.shape.as_list()
    dtype = op.get_attr("dtype") if is_handle else output.dtype
    return float(np.prod(shape) * dtype.base_dtype.size)
