"""Runs a TensorFlow 1 program in this process."""

import atexit
import os
import re
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from phalanx.compat.tf1.imports import install
from phalanx.compat.tf1.missing import TOSTRING, describe_missing, describe_newer
from phalanx.errors import ConfigurationError, PhalanxError

_USAGE = """\
usage: python -m phalanx.compat.tf1 PROGRAM [ARGS]...
       python -m phalanx.compat.tf1 -m MODULE [ARGS]...

Run a TensorFlow 1 program unchanged on TensorFlow 2: `import tensorflow` gives it the names of
TensorFlow 1, with tf.contrib and tf.estimator. TF_CONFIG says which task of a cluster it is.

Example:
  python -m phalanx.compat.tf1 cifar10_main.py --job-dir=/tmp/cifar10 --train-steps=1000
"""

# What TensorFlow says when a program without eager execution uses it.
_EAGER_SIGNS = (
    "has no attribute 'numpy'",
    "'RefVariable' object has no attribute '_id'",
    "numpy() is only available when eager execution is enabled",
    "is only supported in Eager mode",
    "only supported when eager execution is enabled",
    "__iter__() is only supported inside of tf.function or when eager execution is enabled",
    "not supported when eager execution is not enabled",
    "only supports Python-style iteration in eager mode",
    " a symbolic `tf.Tensor`",
)
_TRAINING_IS_OVER = (
    "training is over: the chief has closed the queue of tokens of SyncReplicasOptimizer, and this "
    "task has no more steps to run"
)
_UNKNOWN_NAME = re.compile(
    r"module '(?:tensorflow\._api\.v2\.compat\.v1|tf_keras\.api\._v1|tensorflow(?=\.python\.))\."
    r"([\w.]+)' has no attribute '(\w+)'"
)
_UNKNOWN_KERAS = re.compile(
    r"module 'tf_keras[\w.]*' has no attribute|No module named 'tf_keras\.|"
    r"cannot import name '\w+' from 'tf_keras"
)


def main(arguments: Sequence[str]) -> None:
    """Run the program that a command line names; print an error of Phalanx as one message."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    code = 0
    # The first that is registered runs last, after TensorFlow's own.
    atexit.register(lambda: _end(code))
    try:
        run(arguments)
    except PhalanxError as error:
        print(f"phalanx: {error}", file=sys.stderr)
        code = error.exit_code
        sys.exit(code)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except BaseException as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        raise


def _end(code: int) -> None:
    """End the process at once: the destructor of a TensorFlow server waits for its peers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> None:
    """Run `PROGRAM [ARGS]...` or `-m MODULE [ARGS]...` as `python` would.

    Args:
        arguments: The command line after `python -m phalanx.compat.tf1`.

    Raises:
        ConfigurationError: There is no such program, or what it needs is not installed.
    """
    is_module = arguments[0] == "-m"
    if is_module and len(arguments) == 1:
        raise ConfigurationError("there is no module after -m: name the module to run")
    target, *rest = arguments[is_module:]
    if not is_module and not Path(target).exists():
        raise ConfigurationError(f"there is no file {target}")
    sys.argv = [target, *rest]
    try:
        if is_module:
            sys.path.insert(0, str(Path.cwd()))
            install(target.partition(".")[0])
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            path = Path(target).resolve()
            # With -m, Python puts the working directory first; a program expects its own.
            sys.path[0] = str(path if path.is_dir() else path.parent)
            install()
            runpy.run_path(target, run_name="__main__")
    except Exception as error:
        if not _finds_training_over(error):
            explain(error)
        print(f"phalanx: {_TRAINING_IS_OVER}", file=sys.stderr)


def _finds_training_over(error: Exception) -> bool:
    """Whether a worker has begun when the chief of synchronous training had run the last step.

    A `MonitoredSession` ends there. A session of a `Supervisor` raises the error in the program.
    """
    is_end = type(error).__name__ == "OutOfRangeError"
    return is_end and "'sync_token_q' is closed" in str(error)


def explain(error: Exception) -> NoReturn:
    """Raise an error of the program, with a note if its reason is the time of the program."""
    if any(sign in str(error) for sign in _EAGER_SIGNS):
        error.add_note(
            "The program needs TensorFlow 2's eager execution, which --tf1 turns off: "
            "run it without --tf1."
        )
    if type(error).__name__ == "DeadlineExceededError":
        error.add_note(
            "A step took longer than the limit of its session. On a cluster it may have waited for "
            "a task that has ended: see the logs of the others, the chief's first. The limit is "
            "tf.ConfigProto(operation_timeout_in_ms=...), and by default two hours."
        )
    if "has no attribute 'tostring'" in str(error):
        error.add_note(describe_missing(TOSTRING))
    unknown = _UNKNOWN_NAME.match(str(error))
    if unknown is None and _UNKNOWN_KERAS.match(str(error)):
        error.add_note(
            "Under --tf1, `import keras` and tf.keras are Keras 2, which has no such name. If the "
            "program is for Keras 3, run it without --tf1."
        )
    if unknown is not None:
        error.add_note(_describe_unknown(f"{unknown[1]}.{unknown[2]}"))
    if any(
        frame.f_globals.get("__name__", "").startswith("keras.src.")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ):
        error.add_note(
            "The program uses Keras 3, which does not work in the graphs of TensorFlow 1: build "
            "the model with tf.keras or `import keras`, which are Keras 2 here, or run the program "
            "without --tf1."
        )
    raise error


def _describe_unknown(name: str) -> str:
    """Say whether a name such as `nn.seq2seq`, which is not of TensorFlow 1, is of TensorFlow 2."""
    found: ModuleType | None = sys.modules.get("tensorflow")
    for part in name.split("."):
        found = getattr(found, part, None)
    describe = describe_missing if found is None else describe_newer
    return describe(f"tensorflow.{name}")
