"""Builds the native code: the engines of dapfl.crypto, and the CNN of dapfl.learning.

Everything else about the package is in pyproject.toml. The extensions are optional: without a compiler the
package installs and computes with GMP and torch. No file is compiled for the building machine's own CPU:
each names the instructions it uses, and is only called on a CPU that has them.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/dapfl/crypto/engines/native")

setup(
    ext_modules=[
        Extension(
            "dapfl.crypto.engines._native",
            sources=[str(path) for path in sorted(NATIVE.glob("*.c"))],
            depends=[str(path) for path in sorted(NATIVE.glob("*.h"))],
            extra_compile_args=["-O3"],
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "dapfl.learning._cnn",
            sources=["src/dapfl/learning/native/cnn.c"],
            extra_compile_args=["-O3"],
            libraries=["m"],
            optional=True,
        ),
    ]
)
