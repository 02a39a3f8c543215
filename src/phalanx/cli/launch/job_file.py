"""phalanx.toml: the options of `phalanx launch` in a file, under the same names.

    name = "digits"
    program = "train.py"
    arguments = ["--rate", "0.1"]
    workers = 2
    cpus = { worker = 4, ps = 2 }

    [env]
    TF_CPP_MIN_LOG_LEVEL = "2"

    [slurm]
    partition = "gpu"

The table of a backend applies to that backend only, and overrides the common settings. The command
line overrides both.
"""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

import click

from phalanx.errors import ConfigurationError
from phalanx.launch.containers.options import CONTAINER
from phalanx.launch.options import TENSORBOARD

DEFAULT = "phalanx.toml"

# Common settings that only some backends have. The other backends ignore them, so that one file can
# serve several backends.
_NOT_FOR_ALL = {option.flag.removeprefix("--") for option in (TENSORBOARD, *CONTAINER)}


def read_job_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def read_settings(
    content: Mapping[str, object],
    command: click.Command,
    aliases: Mapping[str, str],
    backends: Collection[str],
    source: str,
) -> dict[str, object]:
    """Return the settings of the file for a command, by the names of click's parameters."""
    backend = command.name or ""
    specific = content.get(backend, {})
    if not isinstance(specific, dict):
        raise ConfigurationError(f"{source}: {backend} must be a table of that backend's settings")
    common = {name: value for name, value in content.items() if name not in backends}
    parameters = {_get_name(each): each for each in command.params if not _is_hidden(each)}
    settings = {}
    for name, value in (common | specific).items():
        parameter = parameters.get(aliases.get(name, name))
        if parameter is None:
            if name not in specific and name in _NOT_FOR_ALL:
                continue
            close = difflib.get_close_matches(name, parameters, n=1)
            hint = f"did you mean {close[0]}?" if close else f"see phalanx launch {backend} --help"
            raise ConfigurationError(f"{source}: there is no setting {name!r}: {hint}")
        assert parameter.name is not None
        settings[parameter.name] = _convert(name, value, parameter, source)
    return settings


def _is_hidden(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.hidden


def _get_name(parameter: click.Parameter) -> str:
    """Return a flag without its dashes, or an argument in lower case."""
    longest = max(parameter.opts, key=len)
    return longest.lstrip("-").lower()


def _convert(name: str, value: object, parameter: click.Parameter, source: str) -> object:
    """Make a list of a table or of a single value if the option can be repeated."""
    is_repeated = parameter.multiple or parameter.nargs == -1
    if isinstance(value, dict) and is_repeated:
        return [f"{key}={each}" for key, each in value.items()]
    if isinstance(value, list) and is_repeated:
        return [str(each) for each in value]
    if isinstance(value, (dict, list)):
        raise ConfigurationError(f"{source}: {name} must be a single value, not {value!r}")
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    if is_flag != isinstance(value, bool):
        expected = "true or false" if is_flag else "a number or a text"
        raise ConfigurationError(f"{source}: {name} must be {expected}, not {value!r}")
    return [str(value)] if is_repeated else value
