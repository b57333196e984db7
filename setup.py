"""Builds the native code: the engines of dapfl.crypto, and the small models of dapfl.learning.

Everything else about the package is in pyproject.toml. The extensions are optional: without a compiler the
package installs and computes with GMP and torch. No file is compiled for the building machine's own CPU:
each names the instructions it uses, and is only called on a CPU that has them.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ENGINES = Path("src/dapfl/crypto/engines/native")
MODELS = Path("src/dapfl/learning/native")

# Python's own flags let whole numbers wrap around. Nothing here relies on that, and without it compilers keep
# more of a loop's addresses out of the loop.
FLAGS = ["-O3", "-fno-wrapv"]

LOST = {
    "dapfl.crypto.engines._native": "encryption computes with GMP, about five times slower",
    "dapfl.learning._native": "the small models of the paper train with PyTorch, about three times slower",
}


class BuildOrSay(build_ext):
    """Says what is lost when an extension cannot be built."""

    def run(self) -> None:
        """Builds them, and looks which are there."""
        super().run()
        for extension in self.extensions:
            if not Path(self.get_ext_fullpath(extension.name)).exists():
                print(
                    f"dapfl: {extension.name} was not built (is there a C compiler?): {LOST[extension.name]}."
                )


setup(
    cmdclass={"build_ext": BuildOrSay},
    ext_modules=[
        Extension(
            "dapfl.crypto.engines._native",
            sources=[str(path) for path in sorted(ENGINES.glob("*.c"))],
            depends=[str(path) for path in sorted(ENGINES.glob("*.h"))],
            extra_compile_args=FLAGS,
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "dapfl.learning._native",
            sources=[str(path) for path in sorted(MODELS.glob("*.c"))],
            depends=[str(path) for path in sorted(MODELS.glob("*.h"))],
            extra_compile_args=FLAGS,
            libraries=["m"],
            optional=True,
        ),
    ],
)
