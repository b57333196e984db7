"""Builds the native engines of dapfl.crypto; everything else about the package is in pyproject.toml.

The extension is optional: without a compiler the package installs and computes with GMP. No file
is compiled for the building machine's own CPU: each backend names the instructions it uses, and
is only called on a CPU that has them.
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
        )
    ]
)
