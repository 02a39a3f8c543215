"""Gives a TensorFlow 1 program the modules that it imports, in this process only.

`import tensorflow` in the program, and in modules beside it, returns a stand-in with the names of
TensorFlow 1. Installed packages and TensorFlow itself import the real one. Nothing on disk changes.
"""

import builtins
import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from phalanx.compat.tf1.missing import describe_missing, describe_newer
from phalanx.compat.tf1.modules import is_provided, make_module
from phalanx.compat.tf1.moved import put_back
from phalanx.errors import ConfigurationError

VERSION = "1.15.0"
"""What `tf.__version__` says: the last version with the names that the program sees."""

_OWN = ("estimator", "contrib", "examples")
_TRAIN = "phalanx.compat.tf1.train"
_KERAS_3_LAYER = "keras.src.layers.layer"
_INSTALLED = ("site-packages", "dist-packages")
_NONE = object()
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
Importer = Callable[..., Any]


def install(package: str = "") -> ModuleType:
    """Give the program of this process TensorFlow 1, and return the stand-in for `tensorflow`.

    Args:
        package: The top-level package of the program if it is installed; other installed packages
            see the real TensorFlow.
    """
    if "tensorflow" in sys.modules and os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        raise ConfigurationError(
            "TensorFlow was imported before phalanx.compat.tf1: import phalanx.compat.tf1 first, "
            "or start the program with python -m phalanx.compat.tf1"
        )
    # TensorFlow reads it when tf.keras is first used: with Keras 3 there is no tf.layers.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    for needed, extra in (("tensorflow", "cpu"), ("tf_keras", "tf1")):
        if find_spec(needed) is None:
            raise ConfigurationError(
                f"--tf1 needs {needed.replace('_', '-')}, which is not installed: "
                f"pip install 'phalanx[{extra}]'"
            )
    real = import_module("tensorflow")
    logger = logging.getLogger("tensorflow")
    level = logger.level
    # TensorFlow warns that variables without resources have no future.
    logger.setLevel(logging.ERROR)
    real.compat.v1.disable_v2_behavior()
    put_back(real.compat.v1)
    logger.setLevel(level)
    # tf.app.run gives the root logger a handler, which would print every line again.
    logger.propagate = False
    # The program was written when these functions were the way to do it.
    warnings.filterwarnings("ignore", message=r".*`tf\.(layers|nn\.rnn_cell)")
    sys.meta_path.insert(0, Tf1Finder("tensorflow"))
    # A program may bring its own TensorLayer, which comes first.
    sys.meta_path.append(Tf1Finder("tensorlayer"))
    stand_in = TensorFlow1(real)
    from phalanx.compat.tf1.old_numpy import OldNumPy  # noqa: PLC0415
    from phalanx.compat.tf1.session import ignore_cancelled_threads  # noqa: PLC0415

    ignore_cancelled_threads()
    stand_ins = {real: stand_in, import_module("numpy"): OldNumPy()}
    builtins.__import__ = _make_importer(builtins.__import__, stand_ins, package)
    _free_flags()
    return stand_in


def _free_flags() -> None:
    """Let the program define flags that absl has by now: --log_dir was a usual one."""
    from absl import flags  # noqa: PLC0415

    for name in flags.FLAGS:
        flags.FLAGS[name].allow_override = True


class TensorFlow1(ModuleType):
    """Stands for `tensorflow`: the names of `tf.compat.v1`, with `contrib` and `estimator`."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__("tensorflow", real.__doc__)
        self.__dict__.update(
            __version__=VERSION,
            VERSION=VERSION,
            __path__=real.__path__,
            __file__=real.__file__,
            __spec__=real.__spec__,
            __package__="tensorflow",
        )
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        real = self.__dict__["_real"]
        if name in _OWN:
            return import_module(f"tensorflow.{name}")
        # tf.newaxis is None.
        found = import_module(_TRAIN) if name == "train" else getattr(real.compat.v1, name, _NONE)
        if found is _NONE and not name.startswith("__"):
            # A module of the real TensorFlow, such as tensorflow.python.
            found = sys.modules.get(f"tensorflow.{name}", _NONE)
        if found is not _NONE:
            self.__dict__[name] = found
            return found
        if hasattr(real, name) and not name.startswith("_"):
            raise AttributeError(describe_newer(f"tensorflow.{name}"))
        raise AttributeError(describe_missing(f"tensorflow.{name}"))

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.__dict__["_real"].compat.v1), *_OWN})


class Tf1Finder(MetaPathFinder, Loader):
    """Finds the modules that TensorFlow 1 had and TensorFlow 2 has not.

    Args:
        prefix: How the names of the modules begin.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(self._prefix) or not is_provided(name):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return make_module(spec.name, import_module)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module looks its names up."""


def _make_importer(
    original: Importer, stand_ins: Mapping[ModuleType, ModuleType], package: str
) -> Importer:
    """Return `__import__` as it was, but with the stand-ins for modules of the program."""

    def import_for_program(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of builtins.__import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        is_keras = level == 0 and name.partition(".")[0] == "keras"
        if is_keras and _is_of_program(globals or {}, package):
            # Keras 3 does not work in a graph; the programs of the time mean Keras 2.
            return original(f"tf_{name}", globals, locals, fromlist, level)
        module = original(name, globals, locals, fromlist, level)
        if name == _KERAS_3_LAYER and hasattr(module, "Layer"):
            _refuse_graphs(module.Layer)
        if module not in stand_ins or not _is_of_program(globals or {}, package):
            return module
        stand_in = stand_ins[module]
        for each in fromlist or ():
            if each != "*":
                try:
                    getattr(stand_in, each)
                except AttributeError as error:
                    raise ImportError(str(error), name=name) from None
        return stand_in

    return import_for_program


@cache
def _refuse_graphs(layer: Any) -> None:
    """Let the layers of Keras 3 fail in a graph, where some run although Keras does not support it.

    A program gets them by importlib, or from an installed package.
    """
    call = layer.__call__

    @wraps(call)
    def call_if_eager(self: Any, *args: Any, **kwargs: Any) -> Any:
        if import_module("tensorflow").compat.v1.executing_eagerly_outside_functions():
            return call(self, *args, **kwargs)
        raise ConfigurationError(
            f"{self.name!r} is a layer of Keras 3, which does not work in the graphs of "
            "TensorFlow 1: build it with tf.keras or `import keras`, which are Keras 2 here, or "
            "run the program without --tf1"
        )

    layer.__call__ = call_if_eager


def _is_of_program(module: Mapping[str, Any], package: str) -> bool:
    """Whether the module with these globals is the program's own, and not an installed package."""
    top = str(module.get("__name__", "")).partition(".")[0]
    if package and top == package:
        return True
    if top in ("tensorflow", "phalanx"):
        return False
    path = str(module.get("__file__") or "")
    return not path.startswith(_STANDARD_LIBRARY + os.sep) and not any(
        f"{os.sep}{each}{os.sep}" in path for each in _INSTALLED
    )
