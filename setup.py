"""The native codec of phalanx.records; everything else is said in pyproject.toml.

Without a compiler the install goes on without it: the codec in pure Python takes its place.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/phalanx/records/native")

setup(
    ext_modules=[
        Extension(
            "phalanx.records._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=["-O3", "-std=c11"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
