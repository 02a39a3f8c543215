"""phalanx.toml: the flags of `phalanx launch` in a file, under the same names.

    name = "digits"
    program = "train.py"
    arguments = ["--rate", "0.1"]
    workers = 2
    cpus = { worker = 4, ps = 2 }

    [env]
    TF_CPP_MIN_LOG_LEVEL = "2"

    [slurm]
    partition = "gpu"

What is in a backend's own table counts for that backend alone, and weighs more. A flag on the
command line weighs most.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from phalanx.errors import ConfigurationError

DEFAULT = "phalanx.toml"


def read_job_file(path: Path) -> dict[str, Any]:
    """What is in the file, as TOML has it."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def settings(
    content: Mapping[str, Any], command: click.Command, backends: Collection[str], source: str
) -> dict[str, Any]:
    """What the file says for this command, by the names that click has for its parameters."""
    backend = command.name or ""
    own = content.get(backend, {})
    if not isinstance(own, dict):
        raise ConfigurationError(f"{source}: {backend} must be a table of that backend's settings")
    common = {name: value for name, value in content.items() if name not in backends}
    parameters = {_name(each): each for each in command.params if not _is_hidden(each)}
    found = {}
    for name, value in (common | own).items():
        parameter = parameters.get(name)
        if parameter is None:
            if name not in own and name in _KNOWN_ELSEWHERE:
                continue
            close = difflib.get_close_matches(name, parameters, n=1)
            meant = f"did you mean {close[0]}?" if close else f"see phalanx launch {backend} --help"
            raise ConfigurationError(f"{source}: there is no setting {name!r}: {meant}")
        assert parameter.name is not None
        found[parameter.name] = _value(name, value, parameter, source)
    return found


# Common settings that only some backends have; one file is to serve several of them.
_KNOWN_ELSEWHERE = frozenset(
    {
        "cpus",
        "credentials",
        "data-workers",
        "gpus",
        "image",
        "label",
        "memory",
        "mount",
        "python",
        "tensorboard",
    }
)


def _is_hidden(parameter: click.Parameter) -> bool:
    """Whether it is there only to be refused."""
    return isinstance(parameter, click.Option) and parameter.hidden


def _name(parameter: click.Parameter) -> str:
    """The name of a flag without its dashes, and of an argument in small letters."""
    longest = max(parameter.opts, key=len)
    return longest.lstrip("-").lower()


def _value(name: str, value: Any, parameter: click.Parameter, source: str) -> Any:
    """A table is a list of KEY=VALUE, and one value of a flag that can be repeated is a list."""
    several = parameter.multiple or parameter.nargs == -1
    if isinstance(value, dict) and several:
        return [f"{key}={each}" for key, each in value.items()]
    if isinstance(value, list) and several:
        return [str(each) for each in value]
    if isinstance(value, (dict, list)):
        raise ConfigurationError(f"{source}: {name} must be a single value, not {value!r}")
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    if is_flag != isinstance(value, bool):
        wanted = "true or false" if is_flag else "a number or a text"
        raise ConfigurationError(f"{source}: {name} must be {wanted}, not {value!r}")
    return [str(value)] if several else value
