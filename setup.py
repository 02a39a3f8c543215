"""The native parts: the codec of phalanx.records, and the library of phalanx.guard.

Everything else is said in pyproject.toml. Without a compiler the install goes on without them: the
codec in pure Python takes the place of the first, and tasks that start without the second warn.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/phalanx/records/native")
CODEC = Extension(
    "phalanx.records._native",
    sources=sorted(str(path) for path in NATIVE.glob("*.c")),
    depends=sorted(str(path) for path in NATIVE.glob("*.h")),
    extra_compile_args=["-O3", "-std=c11"],
    py_limited_api=True,
    optional=True,
)
# Not a module of Python: the dynamic loader loads it before a program. Only Linux has LD_PRELOAD.
GUARD = Extension(
    "phalanx.guard._preload",
    sources=["src/phalanx/guard/preload.c"],
    extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra"],
    libraries=["dl", "pthread"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[CODEC, GUARD] if sys.platform == "linux" else [CODEC],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
