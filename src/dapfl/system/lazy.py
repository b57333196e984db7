"""Public names of a package that are loaded when they are first used, so that importing it stays cheap."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from dapfl.system.parts import absent


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package. `homes` says which module each name is in.

    A name whose home is the module of that name in the package is the module itself.
    """
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(homes[name])
        except ModuleNotFoundError as error:
            raise (absent(error) or error) from None
        value = module if homes[name] == f"{package}.{name}" else getattr(module, name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return load, names
