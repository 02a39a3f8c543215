"""Default arguments of functions inside a `with`, as slim's networks use them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from typing import Any

Function = Callable[..., Any]
Scope = Mapping[str, Mapping[str, Any]]
"""The default arguments of each function, by the function's key."""

_active: list[Scope] = [{}]
_parameters: dict[str, tuple[str, ...]] = {}
_takes_any: set[str] = set()


def _key(func: Function) -> str:
    # The key of `layers.linear` is that of the function it calls.
    func = func.func if isinstance(func, partial) else func
    return f"{func.__module__}.{func.__qualname__}"


def add_arg_scope(func: Function) -> Function:
    """Let `arg_scope` set the arguments of a function; a decorator.

    Args:
        func: The function.

    Returns:
        The function, which takes what a scope sets unless the caller sets it.
    """
    key = _key(func)
    takes = signature(func).parameters.values()
    names = tuple(each.name for each in takes if each.kind is not each.VAR_KEYWORD)
    _parameters[key] = names
    if len(names) < len(takes):
        _takes_any.add(key)

    @wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        defaults = _active[-1].get(key, {})
        given = {*names[: len(args)], *kwargs}
        return func(*args, **{**{k: v for k, v in defaults.items() if k not in given}, **kwargs})

    return call


def has_arg_scope(func: Function) -> bool:
    """Whether `arg_scope` can set the arguments of a function.

    Args:
        func: The function.

    Returns:
        Whether it is decorated with `add_arg_scope`.
    """
    return _key(func) in _parameters


def arg_scoped_arguments(func: Function) -> tuple[str, ...]:
    """Return the names of the arguments that `arg_scope` can set.

    Args:
        func: A function that is decorated with `add_arg_scope`.

    Returns:
        The names.
    """
    return _parameters[_key(func)]


@contextmanager
def arg_scope(list_ops_or_scope: Sequence[Function] | Scope, **kwargs: Any) -> Iterator[Scope]:
    """Set default arguments of functions inside a `with`; scopes nest.

    Args:
        list_ops_or_scope: Functions, or the value of an earlier `with arg_scope(...) as scope`.
        **kwargs: The arguments, if functions are given.

    Yields:
        The arguments of all functions, to be set again later.
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError("arg_scope: a scope that is set again takes no other arguments")
        scope: Scope = list_ops_or_scope
    else:
        changed = dict(_active[-1])
        for func in list_ops_or_scope:
            _check(func, kwargs)
            changed[_key(func)] = {**changed.get(_key(func), {}), **kwargs}
        scope = changed
    _active.append(scope)
    try:
        yield scope
    finally:
        _active.pop()


def _check(func: Function, given: Mapping[str, Any]) -> None:
    if not callable(func) or not has_arg_scope(func):
        raise ValueError(
            f"arg_scope: {func!r} takes no defaults from a scope: decorate it with add_arg_scope"
        )
    unknown = sorted(set(given) - set(_parameters[_key(func)]))
    if unknown and _key(func) not in _takes_any:
        raise ValueError(f"arg_scope: {_key(func)} has no argument {', '.join(unknown)}")
