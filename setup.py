"""Builds the native code: the engines of dapfl.crypto, and the small models of dapfl.learning.

Everything else about the package is in pyproject.toml. The extensions are optional: without a compiler the
package installs and computes with GMP and torch. No file is compiled for the building machine's own CPU:
each names the instructions it uses, and is only called on a CPU that has them.
"""

from pathlib import Path

from setuptools import Extension, setup

ENGINES = Path("src/dapfl/crypto/engines/native")
MODELS = Path("src/dapfl/learning/native")

setup(
    ext_modules=[
        Extension(
            "dapfl.crypto.engines._native",
            sources=[str(path) for path in sorted(ENGINES.glob("*.c"))],
            depends=[str(path) for path in sorted(ENGINES.glob("*.h"))],
            extra_compile_args=["-O3"],
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "dapfl.learning._native",
            sources=[str(path) for path in sorted(MODELS.glob("*.c"))],
            depends=[str(path) for path in sorted(MODELS.glob("*.h"))],
            extra_compile_args=["-O3"],
            libraries=["m"],
            optional=True,
        ),
    ]
)
