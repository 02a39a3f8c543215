"""Reading the pickled batches of CIFAR-10 as data: nothing in the file is imported or called.

A pickle is a program for a stack machine. This module runs the few instructions that a dictionary
of NumPy arrays and lists consists of. A call becomes a `_Call`, which only records what it would
do, and is compared with the calls that NumPy writes.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.data.types import Array

_MOST_OPCODES = 1_000_000
_MOST_NAME_LENGTH = 200
_MARK = object()
_TEXT_ENCODING = "latin-1"


@dataclass
class _Call:
    """A call in the pickle, and the state that is set on its result."""

    function: str
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True)
class _Global:
    name: str


def load_batch(data: bytes) -> tuple[Array, Array]:
    """The images (n, 3072) and labels (n,) of a batch; ValueError says why it is none."""
    batch = _Machine().run(data)
    if not isinstance(batch, dict) or not {"data", "labels"} <= batch.keys():
        raise ValueError("it is not a dictionary with data and labels")
    images, labels = _to_images(batch["data"]), batch["labels"]
    if not isinstance(labels, list) or not all(type(n) is int and 0 <= n < 256 for n in labels):
        raise ValueError("its labels are not a list of numbers from 0 to 255")
    if len(images) != len(labels):
        raise ValueError(f"it has {len(images)} images and {len(labels)} labels")
    return images, np.array(labels, np.int64)


def _to_images(value: object) -> Array:
    """The array that the calls of `ndarray.__reduce__` would make, in any protocol."""
    if not isinstance(value, _Call):
        raise ValueError("its data is not an array")
    if value.function.endswith("multiarray._reconstruct") and isinstance(value.state, tuple):
        _, shape, dtype, by_column, data = value.state
    elif value.function.endswith("numeric._frombuffer"):
        data, dtype, shape, order = value.arguments
        by_column = order == "F"
    else:
        raise ValueError(f"its data refers to {value.function}")
    if not isinstance(dtype, _Call) or dtype.function != "numpy.dtype" or not dtype.arguments:
        raise ValueError("its array has no dtype")
    if _to_text(dtype.arguments[0]) not in ("u1", "|u1", "uint8"):
        raise ValueError("its array does not hold bytes (u1)")
    pixels = _to_bytes(data)
    expected = (len(pixels) // 3072, 3072)
    if shape != expected or len(pixels) % 3072:
        raise ValueError(f"its array of {len(pixels)} bytes does not have the shape (n, 3072)")
    return np.frombuffer(pixels, np.uint8).reshape(expected, order="F" if by_column else "C")


def _to_text(value: object) -> object:
    """A name that Python 2 wrote as text, and Python 3 as bytes or as an encoded text."""
    value = _unwrap(value)
    return value.decode(_TEXT_ENCODING) if isinstance(value, bytes) else value


def _unwrap(value: object) -> object:
    """What a call of `_codecs.encode` encodes."""
    if isinstance(value, _Call) and value.function == "_codecs.encode" and value.arguments:
        return value.arguments[0]
    return value


def _to_bytes(value: object) -> bytes:
    text = _to_text(value)
    if isinstance(text, str):
        return text.encode(_TEXT_ENCODING)
    if isinstance(text, bytearray):
        return bytes(text)
    raise ValueError("its array has no bytes")


class _Machine:
    """Runs the opcodes of a pickle. Memory is bounded by the size of the pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        try:
            for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
                if number == _MOST_OPCODES:
                    raise ValueError(f"it has more than {_MOST_OPCODES} instructions")
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._step(opcode.name, argument)
        except (IndexError, KeyError, TypeError) as error:
            raise ValueError(f"it is not a valid pickle: {error}") from None
        raise ValueError("it ends too early")

    def _step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _TUPLE_SIZES:
            size = _TUPLE_SIZES[name]
            self._stack[-size:] = [tuple(self._stack[len(self._stack) - size :])]
        elif name in _FROM_ITEMS:
            items = self._pop_items()
            self._stack.append(_FROM_ITEMS[name](items))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[argument])
        elif name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS"):
            self._add(name)
        elif name == "GLOBAL":
            self._stack.append(_Global(_check_name(argument).replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            function, module = self._stack.pop(), self._stack.pop()
            self._stack.append(_Global(f"{_check_name(module)}.{_check_name(function)}"))
        elif name == "REDUCE":
            arguments, function = self._stack.pop(), self._stack.pop()
            if not isinstance(function, _Global) or not isinstance(arguments, tuple):
                raise ValueError("it calls something that is not a function")
            self._stack.append(_call(function.name, arguments))
        elif name == "BUILD":
            state = self._stack.pop()
            if not isinstance(self._stack[-1], _Call):
                raise ValueError("it sets the state of something that is not an array")
            self._stack[-1].state = state
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it has the instruction {name}, which arrays do not need")

    def _pop_items(self) -> list[Any]:
        """The items above the last mark."""
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _add(self, name: str) -> None:
        """Extend the list or dictionary under the items."""
        if name.endswith("S"):
            items = self._pop_items()
        else:
            items = [self._stack.pop() for _ in range(1 if name == "APPEND" else 2)][::-1]
        target = self._stack[-1]
        if name.startswith("APPEND") and isinstance(target, list):
            target.extend(items)
        elif name.startswith("SETITEM") and isinstance(target, dict):
            target.update(_to_dict(items))
        else:
            raise ValueError("it extends something that is not a list or dictionary")


def _check_name(value: object) -> str:
    """A short text: a file can refer to a long one again and again, and each copy would cost."""
    if not isinstance(value, str) or len(value) > _MOST_NAME_LENGTH:
        raise ValueError("it has a name that is too long, or not text")
    return value


def _call(function: str, arguments: tuple[Any, ...]) -> _Call:
    known = function.replace("numpy.core.", "numpy._core.")
    if known not in _FUNCTIONS:
        raise ValueError(f"it refers to {function}")
    return _Call(known, arguments)


def _to_dict(items: list[Any]) -> dict[str, Any]:
    return {_to_name(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _to_name(value: object) -> str:
    text = _unwrap(value)
    if isinstance(text, bytes) and len(text) <= _MOST_NAME_LENGTH:
        text = text.decode(_TEXT_ENCODING)
    return _check_name(text)


_FUNCTIONS = {
    "numpy._core.multiarray._reconstruct",
    "numpy._core.numeric._frombuffer",
    "numpy.dtype",
    "_codecs.encode",
}
_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BYTEARRAY8"),
}
_CONSTANTS: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_TUPLE_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_FROM_ITEMS: dict[str, Callable[[list[Any]], object]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": _to_dict,
}
